/* Programs that ask for an order among writes, reads and messages get it: what is short does not
 * overtake what is long. Prints the first thing that is not as it must be. */
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <string.h>

#include "domain.h"

enum { LARGE = 8 << 20, SMALL = 8, ROUNDS = 8, KEY = 7, LAST = LARGE - SMALL };

static struct fid_cq *sent, *received;
static struct fid_mr *mr;
static struct fid_ep *here, *there;
static fi_addr_t to;
static char *memory, *out, *in;
static char small[SMALL], got[SMALL];

static const uint64_t ORDERS = FI_ORDER_STRICT | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW |
			       FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW;

static struct fi_info *ordered(uint64_t orders)
{
	struct fi_info *hints = asked(FI_MSG | FI_RMA);

	hints->tx_attr->msg_order = hints->rx_attr->msg_order = orders;
	return offered(hints);
}

/* Each transmission waits for those before it. */
static struct fi_info *fenced(void)
{
	struct fi_info *hints = asked(FI_MSG | FI_RMA | FI_FENCE);

	hints->tx_attr->op_flags = FI_FENCE;
	return offered(hints);
}

static void each_order_is_had_by_those_who_ask(void)
{
	for (uint64_t order = 1; order; order <<= 1) {
		if (!(order & ORDERS))
			continue;
		struct fi_info *found = ordered(order);
		WANT(found->tx_attr->msg_order & order, order);
		WANT(found->rx_attr->msg_order & order, order);
		fi_freeinfo(found);
	}
	struct fi_info *found = ordered(0);
	WANT(found->tx_attr->msg_order & (FI_ORDER_STRICT & ~FI_ORDER_SAS), 0);
	fi_freeinfo(found);
	found = ordered(FI_ORDER_WAW | FI_ORDER_RMA_RAW);
	WANT(found->ep_attr->max_order_waw_size, -1);
	WANT(found->ep_attr->max_order_raw_size, -1);
	WANT(found->ep_attr->max_order_war_size < LARGE, 1);
	fi_freeinfo(found);
}

static struct fid_ep *opened(struct fid_cq *cq)
{
	struct fid_ep *ep;

	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	return ep;
}

static void open_all(struct fi_info *found)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE };
	char name[64];
	size_t len = sizeof name;

	info = found;
	open_domain();
	OK(fi_cq_open(domain, &queue, &sent, NULL));
	OK(fi_cq_open(domain, &queue, &received, NULL));
	OK(fi_mr_reg(domain, memory, LARGE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	here = opened(sent);
	there = opened(received);
	OK(fi_getname(&there->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
}

static void close_all(void)
{
	struct fid *all[] = { &here->fid, &there->fid, &mr->fid, &sent->fid, &received->fid,
			      &av->fid, &domain->fid, &fabric->fid };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		OK(fi_close(all[i]));
	fi_freeinfo(info);
}

/* Until so many operations are complete; a message, if one is awaited, has come. */
static void finish(int operations, int messages)
{
	struct fi_cq_entry entry;

	while (operations + messages > 0) {
		long n = fi_cq_read(sent, &entry, 1), m = fi_cq_read(received, &entry, 1);
		WANT(n == 1 || n == -FI_EAGAIN, 1);
		WANT(m == 1 || m == -FI_EAGAIN, 1);
		operations -= n == 1;
		if (m == 1) {
			/* What was written before it is there. */
			OK(memcmp(memory + LAST, out + LAST, SMALL));
			messages--;
		}
	}
}

static void put_large(int value)
{
	memset(out, value, LARGE);
	OK(fi_write(here, out, LARGE, NULL, to, 0, KEY, NULL));
}

static void what_comes_later_does_not_overtake(int round)
{
	int value = 1 + 8 * round;

	/* A message after a write. */
	put_large(value);
	OK(fi_recv(there, got, SMALL, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_send(here, small, SMALL, NULL, to, NULL));
	finish(2, 1);
	/* A write after a write. */
	put_large(value + 1);
	memset(small, value + 2, SMALL);
	OK(fi_write(here, small, SMALL, NULL, to, LAST, KEY, NULL));
	finish(2, 0);
	OK(memcmp(memory + LAST, small, SMALL));
	WANT(memory[LAST - 1], (char)(value + 1));
	/* A read after a write. */
	put_large(value + 3);
	OK(fi_read(here, got, SMALL, NULL, to, LAST, KEY, NULL));
	finish(2, 0);
	OK(memcmp(got, out + LAST, SMALL));
	/* A write after a read. */
	OK(fi_read(here, in, LARGE, NULL, to, 0, KEY, NULL));
	memset(small, value + 4, SMALL);
	OK(fi_write(here, small, SMALL, NULL, to, LAST, KEY, NULL));
	finish(2, 0);
	WANT(in[LARGE - 1], (char)(value + 3));
	WANT(memory[LARGE - 1], (char)(value + 4));
}

/* Default flags are those of injected operations too, which tell of no end. */
static void what_is_injected_waits_at_a_fence(int round)
{
	int value = 1 + 8 * round;

	put_large(value);
	OK(fi_recv(there, got, SMALL, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_inject(here, small, SMALL, to));
	finish(1, 1);
	put_large(value + 1);
	memset(small, value + 2, SMALL);
	OK(fi_inject_write(here, small, SMALL, to, LAST, KEY));
	OK(fi_read(here, got, SMALL, NULL, to, LAST, KEY, NULL));
	finish(2, 0);
	OK(memcmp(got, small, SMALL));
}

int main(void)
{
	memory = calloc(1, LARGE);
	out = malloc(LARGE);
	in = malloc(LARGE);
	each_order_is_had_by_those_who_ask();
	open_all(ordered(FI_ORDER_SAW | FI_ORDER_WAW | FI_ORDER_RAW | FI_ORDER_WAR));
	for (int round = 0; round < ROUNDS; round++)
		what_comes_later_does_not_overtake(round);
	close_all();
	open_all(fenced());
	for (int round = 0; round < ROUNDS; round++)
		what_is_injected_waits_at_a_fence(round);
	close_all();
	free(memory);
	free(out);
	free(in);
	return 0;
}
