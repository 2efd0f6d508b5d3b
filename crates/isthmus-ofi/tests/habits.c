/* What clients of libfabric do beyond the manual pages' examples: GASNet, MPICH, Open MPI, Sandia OpenSHMEM, DAOS,
 * ADIOS2 and NCCL's plugin. Two endpoints of one process. Prints the first thing that is not as it must be. */
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>

#include "domain.h"

#define CONTEXT(n) ((void *)(long)(n))
enum { LITTLE = 8, MANY = 3000 };

struct end {
	struct fid_cq *cq;
	struct fid_ep *ep;
};

static struct end near, far;
static char name[2][64];
static size_t len = sizeof name[0];
static fi_addr_t there;

static void open_end(struct end *end, size_t entries, uint64_t caps)
{
	struct fi_cq_attr queue = { .size = entries, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	uint64_t given = info->caps;

	/* GASNet has an endpoint for messages and one for memory, of one info that it changes between them. */
	info->caps = caps;
	OK(fi_cq_open(domain, &queue, &end->cq, NULL));
	OK(fi_endpoint(domain, info, &end->ep, NULL));
	OK(fi_ep_bind(end->ep, &av->fid, 0));
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	/* Sandia OpenSHMEM enables by the call behind fi_enable. */
	OK(fi_control(&end->ep->fid, FI_ENABLE, NULL));
	info->caps = given;
}

static void close_end(struct end *end)
{
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->cq->fid));
}

/* Moves the other end on by reading nothing, as GASNet and DAOS do. */
static struct fi_cq_tagged_entry next(struct end *end, struct end *other)
{
	struct fi_cq_tagged_entry entry;
	ssize_t n;

	while ((n = fi_cq_read(end->cq, &entry, 1)) == -FI_EAGAIN)
		WANT(fi_cq_read(other->cq, NULL, 0) <= 0, 1);
	WANT(n, 1);
	return entry;
}

/* Every attribute comes from an earlier answer, as with the info that MPICH and NCCL's plugin choose from a list. */
static void an_answer_is_a_valid_question(void)
{
	struct fi_info *again = fi_dupinfo(info), *found;

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, again, &found));
	WANT(found->caps, info->caps);
	WANT(found->src_addrlen, info->src_addrlen);
	fi_freeinfo(found);
	/* Modes that a program could live with oblige nobody. */
	again->mode = ~0ull;
	again->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, again, &found));
	WANT(found->mode == 0 && found->domain_attr->mr_mode == 0, 1);
	fi_freeinfo(found);
	fi_freeinfo(again);
}

/* A program that names no operation gets all, but none that rules out what else it asks for. */
static void limits_may_be_asked_without_capabilities(void)
{
	struct fi_info *hints = asked(0), *found;

	hints->tx_attr->rma_iov_limit = 2;
	found = offered(hints);
	WANT(found->tx_attr->rma_iov_limit >= 2, 1);
	WANT((found->caps & FI_RMA) != 0 && (found->caps & FI_RMA_EVENT) == 0, 1);
	fi_freeinfo(found);
	hints = asked(FI_RMA | FI_RMA_EVENT);
	hints->tx_attr->rma_iov_limit = 2;
	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* GASNet inserts all addresses at once, asks for no numbers, and counts them itself. */
static void a_table_numbers_its_addresses_in_order(void)
{
	char out[64];
	size_t room = 0;

	OK(fi_getname(&near.ep->fid, name[0], &len));
	OK(fi_getname(&far.ep->fid, name[1], &len));
	WANT(fi_av_insert(av, name, 2, NULL, 0, NULL), 2);
	there = 1;
	OK(fi_av_lookup(av, there, NULL, &room));
	WANT(room, len);
	OK(fi_av_lookup(av, there, out, &room));
	OK(memcmp(out, name[1], len));
	WANT(fi_av_insert(av, NULL, 0, NULL, 0, NULL), 0);
}

/* Nothing is lost by a queue that is shorter than what is under way: the sender is told to try again. */
static void a_short_queue_loses_no_completion(void)
{
	static char byte[MANY];
	long posted = 0, ended = 0, came = 0;
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < MANY; i++)
		while (fi_trecv(far.ep, &byte[i], 1, NULL, FI_ADDR_UNSPEC, 7, 0, CONTEXT(i)) == -FI_EAGAIN)
			came += fi_cq_read(far.cq, &entry, 1) == 1;
	while (posted < MANY) {
		ssize_t n = fi_tsend(near.ep, "x", 1, NULL, there, 7, NULL);

		if (n == 0) {
			posted++;
			continue;
		}
		WANT(n, -FI_EAGAIN);
		ended += fi_cq_read(near.cq, &entry, 1) == 1;
		came += fi_cq_read(far.cq, &entry, 1) == 1;
	}
	while (ended < MANY || came < MANY) {
		ended += fi_cq_read(near.cq, &entry, 1) == 1;
		came += fi_cq_read(far.cq, &entry, 1) == 1;
	}
	WANT(fi_cq_read(near.cq, &entry, 1), -FI_EAGAIN);
}

static void nothing_may_be_nowhere(void)
{
	struct fi_msg_tagged message = { .addr = there, .tag = 9, .context = CONTEXT(3) };
	char memory[16];
	struct fid_mr *mr;

	OK(fi_trecv(far.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 0, ~0ull, CONTEXT(1)));
	OK(fi_tinjectdata(near.ep, NULL, 0, 0x1122334455667788, there, 5));
	struct fi_cq_tagged_entry entry = next(&far, &near);
	WANT(entry.len == 0 && entry.tag == 5 && entry.data == 0x1122334455667788, 1);
	OK(fi_trecv(far.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 9, 0, CONTEXT(2)));
	OK(fi_tsendmsg(near.ep, &message, FI_INJECT_COMPLETE | FI_COMPLETION));
	WANT(next(&far, &near).op_context, CONTEXT(2));
	WANT(next(&near, &far).op_context, CONTEXT(3));

	/* Writes without bytes are signals, as those of NCCL's plugin and MPICH. */
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 5, 0, &mr, NULL));
	OK(fi_writedata(near.ep, NULL, 0, NULL, 77, there, 0, 5, CONTEXT(4)));
	WANT(next(&near, &far).op_context, CONTEXT(4));
	entry = next(&far, &near);
	WANT(entry.data == 77 && entry.len == 0, 1);
	OK(fi_read(near.ep, NULL, 0, NULL, there, 16, 5, CONTEXT(5)));
	WANT(next(&near, &far).op_context, CONTEXT(5));
	/* Its domain cannot go before it, and its key is free after it. */
	WANT(fi_close(&domain->fid), -FI_EBUSY);
	OK(fi_close(&mr->fid));
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
}

static volatile sig_atomic_t rang;

static void ring(int signal)
{
	(void)signal;
	rang++;
}

/* A signal may end a sleep early, and is no failure. */
static void a_sleeper_takes_signals(void)
{
	struct itimerval soon = { .it_value = { .tv_usec = 50000 } };
	struct sigaction action = { .sa_handler = ring };
	struct fi_cq_tagged_entry entry;
	ssize_t n;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	n = fi_cq_sread(near.cq, &entry, 1, NULL, 300);
	WANT(n == -FI_EAGAIN || n == -FI_EINTR, 1);
	WANT(rang, 1);
}

/* No memory has so many bytes: nobody may read them. */
static void a_message_that_is_too_long_is_told(void)
{
	struct iovec halves[2] = { { name, (size_t)1 << 63 }, { name, (size_t)1 << 63 } };
	size_t most = info->ep_attr->max_msg_size;

	WANT(fi_tsend(near.ep, name, most + 1, NULL, there, 0, NULL), -FI_EMSGSIZE);
	WANT(fi_send(near.ep, name, SIZE_MAX, NULL, there, NULL), -FI_EMSGSIZE);
	WANT(fi_sendv(near.ep, halves, NULL, 2, there, NULL), -FI_EMSGSIZE);
}

/* Errors are read into an entry that the program did not clear. */
static void an_error_is_whole(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	char bytes[2], data[8];

	memset(&error, 0xee, sizeof error);
	error.err_data = data;
	error.err_data_size = sizeof data;
	WANT(fi_cq_readerr(far.cq, &error, 0), -FI_EAGAIN);
	OK(fi_trecv(far.ep, bytes, 2, NULL, FI_ADDR_UNSPEC, 4, 0, CONTEXT(6)));
	OK(fi_tsend(near.ep, "hello", 6, NULL, there, 4, NULL));
	next(&near, &far);
	while (fi_cq_read(far.cq, NULL, 0) != -FI_EAVAIL)
		;
	WANT(fi_cq_read(far.cq, &entry, 1), -FI_EAVAIL);
	WANT(fi_cq_readerr(far.cq, &error, 0), 1);
	WANT(error.err == FI_ETRUNC && error.len == 2 && error.olen == 4 && error.tag == 4, 1);
	WANT(error.op_context == CONTEXT(6) && error.err_data_size == 0, 1);
	WANT(strlen(fi_cq_strerror(far.cq, error.prov_errno, error.err_data, NULL, 0)) > 0, 1);
	/* Some programs ask for the text of `err`, in either sign. */
	WANT(strcmp(fi_cq_strerror(far.cq, FI_ECANCELED, NULL, NULL, 0), strerror(ECANCELED)), 0);
	WANT(strcmp(fi_cq_strerror(far.cq, -FI_ECANCELED, NULL, NULL, 0), strerror(ECANCELED)), 0);
	WANT(strstr(fi_cq_strerror(far.cq, FI_ETRUNC, NULL, NULL, 0), "longer than the buffer") != NULL, 1);
	WANT(strstr(fi_cq_strerror(far.cq, 1, NULL, NULL, 0), "buffer") == NULL, 1);
}

int main(void)
{
	const uint64_t caps = FI_TAGGED | FI_MSG | FI_RMA | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE;

	info = offered(asked(caps));
	an_answer_is_a_valid_question();
	limits_may_be_asked_without_capabilities();
	open_domain();
	open_end(&near, LITTLE, caps);
	open_end(&far, 0, caps);
	a_table_numbers_its_addresses_in_order();
	a_short_queue_loses_no_completion();
	nothing_may_be_nowhere();
	a_sleeper_takes_signals();
	a_message_that_is_too_long_is_told();
	an_error_is_whole();
	OK(fi_trecv(far.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(7)));
	close_end(&far);
	close_end(&near);
	close_domain();
	fi_freeinfo(info);
	return 0;
}
