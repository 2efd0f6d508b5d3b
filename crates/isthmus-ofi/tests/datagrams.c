/* Datagram endpoints (FI_EP_DGRAM): what is claimed is there, the rest refused. Between two
 * endpoints of one process nothing is lost for which there is room.
 * Prints the first thing that is not as it must be. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <string.h>

#include "want.h"

enum { LIMIT_MS = 60000 };

struct end {
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *sent;
	struct fid_ep *ep;
	fi_addr_t other;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct end left, right;

static struct fi_info *asked(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();

	hints->caps = caps;
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->fabric_attr->prov_name = strdup("isthmus");
	return hints;
}

static void what_datagrams_have_not_is_not_offered(void)
{
	uint64_t caps[] = { FI_TAGGED, FI_RMA, FI_ATOMIC, FI_MULTI_RECV, FI_DIRECTED_RECV, FI_FENCE };
	struct fi_info *hints, *found;

	for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
		hints = asked(FI_MSG | caps[i]);
		WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
		fi_freeinfo(hints);
	}
	hints = asked(FI_MSG);
	hints->ep_attr->max_msg_size = 1 << 20;
	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
	fi_freeinfo(hints);
	hints = asked(FI_MSG);
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* Who binds to any address has the host's own, and the packets of its interface. */
static void any_address_has_the_packets_of_the_hosts_own(void)
{
	struct fi_info *hints = asked(FI_MSG), *own, *any;

	setenv("FI_ISTHMUS_INTERFACE", "lo", 1);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &own));
	OK(fi_getinfo(FI_VERSION(1, 17), "0.0.0.0", "0", FI_SOURCE, hints, &any));
	WANT(own->ep_attr->max_msg_size > 1472, 1);
	WANT(any->ep_attr->max_msg_size, own->ep_attr->max_msg_size);
	unsetenv("FI_ISTHMUS_INTERFACE");
	fi_freeinfo(own);
	fi_freeinfo(any);
	fi_freeinfo(hints);
}

static void open_end(struct end *end)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD };
	struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP };

	OK(fi_av_open(domain, &table, &end->av, NULL));
	OK(fi_cq_open(domain, &queue, &end->cq, NULL));
	OK(fi_cntr_open(domain, &counter, &end->sent, NULL));
	OK(fi_endpoint(domain, info, &end->ep, NULL));
	OK(fi_ep_bind(end->ep, &end->av->fid, 0));
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(end->ep, &end->sent->fid, FI_SEND));
	OK(fi_enable(end->ep));
}

static void introduce(struct end *end, struct end *other)
{
	char name[64];
	size_t len = sizeof name;

	OK(fi_getname(&other->ep->fid, name, &len));
	WANT(fi_av_insert(end->av, name, 1, &end->other, 0, NULL), 1);
}

static void close_end(struct end *end)
{
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->sent->fid));
	OK(fi_close(&end->cq->fid));
	OK(fi_close(&end->av->fid));
}

/* Posts a receive whose end is told under its buffer's address. */
static void post(struct end *end, void *buffer, size_t len)
{
	struct iovec iov = { buffer, len };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buffer };

	OK(fi_recvmsg(end->ep, &message, FI_COMPLETION | FI_TRANSMIT_COMPLETE));
}

static void a_message_comes_with_sender_and_data(void)
{
	struct fi_cq_data_entry entry;
	fi_addr_t source = FI_ADDR_UNSPEC;
	char text[8] = "hello", buffer[16];

	post(&right, buffer, sizeof buffer);
	OK(fi_senddata(left.ep, text, 6, NULL, 0xabc, left.other, NULL));
	WANT(fi_cq_sreadfrom(right.cq, &entry, 1, &source, NULL, LIMIT_MS), 1);
	WANT(entry.op_context == buffer, 1);
	WANT(entry.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
	WANT(entry.len, 6);
	WANT(entry.data, 0xabc);
	WANT(source, right.other);
	OK(strcmp(buffer, "hello"));
	/* Nobody asked for an entry; the counter knows. */
	WANT(fi_cq_read(left.cq, &entry, 1), -FI_EAGAIN);
	WANT(fi_cntr_read(left.sent), 1);
}

static void many_come_in_one_piece_each(void)
{
	enum { COUNT = 100 };
	static char buffers[COUNT][8];
	struct fi_cq_data_entry entries[COUNT];
	int came = 0;

	for (int i = 0; i < COUNT; i++)
		post(&right, buffers[i], sizeof buffers[i]);
	for (int i = 0; i < COUNT; i++)
		OK(fi_inject(left.ep, &i, sizeof i, left.other));
	while (came < COUNT) {
		ssize_t n = fi_cq_sread(right.cq, entries, COUNT, NULL, LIMIT_MS);
		WANT(n > 0, 1);
		for (ssize_t i = 0; i < n; i++)
			WANT(entries[i].len, sizeof(int));
		came += n;
	}
	for (int i = 0; i < COUNT; i++)
		WANT(*(int *)buffers[i], i);
}

static void what_is_too_long_is_refused_or_cut(void)
{
	size_t most = info->ep_attr->max_msg_size, asked_for = 0, len = sizeof asked_for;
	char *bytes = calloc(1, most + 1), small[4];
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error = { 0 };

	OK(fi_getopt(&left.ep->fid, FI_OPT_ENDPOINT, 12 /* FI_OPT_MAX_MSG_SIZE */, &asked_for, &len));
	WANT(asked_for, most);
	WANT(fi_send(left.ep, bytes, most + 1, NULL, left.other, NULL), -FI_EMSGSIZE);
	post(&right, small, sizeof small);
	OK(fi_send(left.ep, bytes, most, NULL, left.other, NULL));
	WANT(fi_cq_sread(right.cq, &entry, 1, NULL, LIMIT_MS), -FI_EAVAIL);
	WANT(fi_cq_readerr(right.cq, &error, 0), 1);
	WANT(error.err, FI_ETRUNC);
	WANT(error.len, sizeof small);
	WANT(error.olen, most - sizeof small);
	free(bytes);
}

static void a_receive_may_be_cancelled(void)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error = { 0 };
	char buffer[8];

	post(&right, buffer, sizeof buffer);
	OK(fi_cancel(&right.ep->fid, buffer));
	WANT(fi_cq_sread(right.cq, &entry, 1, NULL, LIMIT_MS), -FI_EAVAIL);
	WANT(fi_cq_readerr(right.cq, &error, 0), 1);
	WANT(error.err, FI_ECANCELED);
	WANT(error.op_context == buffer, 1);
}

static void the_rest_is_refused(void)
{
	char buffer[8];
	struct iovec iov = { buffer, sizeof buffer };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .addr = left.other };

	WANT(fi_tsend(left.ep, buffer, 8, NULL, left.other, 1, NULL) < 0, 1);
	WANT(fi_write(left.ep, buffer, 8, NULL, left.other, 0, 0, NULL) < 0, 1);
	WANT(fi_sendmsg(left.ep, &message, FI_DELIVERY_COMPLETE), -FI_EBADFLAGS);
	WANT(fi_recvmsg(left.ep, &message, FI_MULTI_RECV), -FI_EBADFLAGS);
}

/* Nobody has a buffer for what waits: a sleeper is not woken by it, and it is not lost. */
static void who_sleeps_is_woken_by_what_is_wanted(void)
{
	struct fi_cq_data_entry entry;
	char buffer[8];
	long seven = 7;

	OK(fi_inject(left.ep, &seven, sizeof seven, left.other));
	WANT(fi_cq_sread(right.cq, &entry, 1, NULL, 10), -FI_EAGAIN);
	post(&right, buffer, sizeof buffer);
	WANT(fi_cq_sread(right.cq, &entry, 1, NULL, LIMIT_MS), 1);
	WANT(*(long *)buffer, 7);
}

int main(void)
{
	struct fi_info *hints = asked(FI_MSG | FI_SOURCE);

	what_datagrams_have_not_is_not_offered();
	any_address_has_the_packets_of_the_hosts_own();
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	WANT(info->ep_attr->type, FI_EP_DGRAM);
	WANT(info->caps, FI_MSG | FI_SEND | FI_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	open_end(&left);
	open_end(&right);
	introduce(&left, &right);
	introduce(&right, &left);
	a_message_comes_with_sender_and_data();
	many_come_in_one_piece_each();
	what_is_too_long_is_refused_or_cut();
	a_receive_may_be_cancelled();
	the_rest_is_refused();
	who_sleeps_is_woken_by_what_is_wanted();
	close_end(&left);
	close_end(&right);
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}
