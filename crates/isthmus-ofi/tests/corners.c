/* Corners of the manual pages that programs of others rely on, as the providers of libfabric itself have
 * them: counters bound late, searches that are always told, cancelled tags, lists of descriptors, operations
 * on several pieces of a peer's memory, old versions. Prints the first thing that is not as it must be. */
#include <poll.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <string.h>

#include "domain.h"

#define CONTEXT(n) ((void *)(n))

static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t self;
static struct fid_cntr *sent, *came;
static char buffer[64];

/* An endpoint whose queue hears only of what asks for it; enabling fails until it has an address vector,
 * and loses nothing of what was bound before. */
static void open_all(void)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_POLLFD };
	char name[64];
	size_t len = sizeof name;

	open_domain();
	OK(fi_cq_open(domain, &queue, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	WANT(fi_enable(ep), -FI_ENOAV);
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_enable(ep));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static void close_all(void)
{
	OK(fi_close(&ep->fid));
	if (sent)
		OK(fi_close(&sent->fid));
	if (came)
		OK(fi_close(&came->fid));
	OK(fi_close(&cq->fid));
	close_domain();
	sent = came = NULL;
}

static struct fi_cq_tagged_entry next(void)
{
	struct fi_cq_tagged_entry entry;

	WANT(fi_cq_sread(cq, &entry, 1, NULL, 5000), 1);
	return entry;
}

static struct fi_cq_err_entry next_error(int errno_wanted)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };

	WANT(fi_cq_sread(cq, &entry, 1, NULL, 5000), -FI_EAVAIL);
	WANT(fi_cq_readerr(cq, &error, 0), 1);
	WANT(error.err, errno_wanted);
	return error;
}

/* As Sandia OpenSHMEM binds those of its contexts. */
static void a_counter_may_be_bound_to_an_enabled_endpoint(void)
{
	struct fi_cntr_attr counter = { .wait_obj = FI_WAIT_UNSPEC };

	OK(fi_cntr_open(domain, &counter, &sent, NULL));
	OK(fi_cntr_open(domain, &counter, &came, NULL));
	OK(fi_ep_bind(ep, &sent->fid, FI_SEND));
	OK(fi_ep_bind(ep, &came->fid, FI_RECV));
	WANT(fi_ep_bind(ep, &av->fid, 0), -FI_EOPBADSTATE);
	OK(fi_trecv(ep, buffer, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tsend(ep, "hello", 6, NULL, self, 1, NULL));
	OK(fi_cntr_wait(sent, 1, 5000));
	OK(fi_cntr_wait(came, 1, 5000));

	WANT(fi_close(&came->fid), -FI_EBUSY);
}

/* A message that is looked for is not received by that, and to look in vain is no failure to receive; the
 * search itself is told though the queue is told of nothing else. */
static void a_search_is_told_and_not_counted(void)
{
	struct fi_msg_tagged search = { .addr = FI_ADDR_UNSPEC, .tag = 2, .context = CONTEXT(1) };
	uint64_t before = fi_cntr_read(came);

	struct fi_cq_err_entry missed = { 0 };
	struct fi_cq_tagged_entry found;

	OK(fi_tinject(ep, "hello", 6, self, 2));
	/* It may not be here yet. */
	do {
		OK(fi_trecvmsg(ep, &search, FI_PEEK));
	} while (fi_cq_sread(cq, &found, 1, NULL, 5000) == -FI_EAVAIL && fi_cq_readerr(cq, &missed, 0) == 1);
	WANT(found.flags, FI_TAGGED | FI_RECV);
	WANT(found.len == 6 && found.tag == 2 && found.op_context == CONTEXT(1), 1);
	OK(fi_trecvmsg(ep, &search, FI_PEEK | FI_DISCARD));
	WANT(next().len, 6);
	OK(fi_trecvmsg(ep, &search, FI_PEEK));
	WANT(next_error(FI_ENOMSG).tag, 2);
	WANT(fi_cntr_read(came), before);
	WANT(fi_cntr_readerr(came), 0);
}

static void a_cancelled_receive_is_named_by_its_tag(void)
{
	OK(fi_trecv(ep, buffer, 8, NULL, FI_ADDR_UNSPEC, 77, 0, CONTEXT(5)));
	OK(fi_cancel(&ep->fid, CONTEXT(5)));
	struct fi_cq_err_entry error = next_error(FI_ECANCELED);
	WANT(error.tag == 77 && error.op_context == CONTEXT(5), 1);
}

static void descriptors_may_come_in_a_list(void)
{
	struct pollfd wait[2];
	struct fi_wait_pollfd list = { .nfds = 0 };
	struct fid *fids[1] = { &cq->fid };
	uint64_t index;
	enum fi_wait_obj kind;

	OK(fi_control(&cq->fid, FI_GETWAITOBJ, &kind));
	WANT(kind, FI_WAIT_POLLFD);
	WANT(fi_control(&cq->fid, FI_GETWAIT, &list), -FI_ETOOSMALL);
	WANT(list.nfds, 1);
	index = list.change_index;
	list.nfds = 2;
	list.fd = wait;
	OK(fi_control(&cq->fid, FI_GETWAIT, &list));
	WANT(list.nfds == 1 && list.change_index == index, 1);
	/* Who slept may have been woken late: whoever is woken looks, and sleeps again. */
	int woken = 0;
	do {
		OK(fi_trywait(fabric, fids, 1));
	} while (poll(wait, 1, 10) != 0 && woken++ < 3);
	WANT(woken <= 3, 1);
	struct fi_msg_tagged search = { .addr = FI_ADDR_UNSPEC, .tag = 9 };
	OK(fi_trywait(fabric, fids, 1));
	OK(fi_trecvmsg(ep, &search, FI_PEEK));
	WANT(poll(wait, 1, 5000), 1);
	next_error(FI_ENOMSG);
}

/* One operation, one completion, with the data after all of its pieces. */
static void several_pieces_of_a_peers_memory_are_one_operation(void)
{
	char memory[64] = "", from[12] = "abcdefghijkl", back[12] = "";
	struct iovec pieces[2] = { { from, 5 }, { from + 5, 7 } }, whole = { back, 12 };
	struct fi_rma_iov places[5] = { { 0, 3, 42 }, { 16, 0, 42 }, { 32, 8, 42 }, { 50, 1, 42 } };
	struct fi_msg_rma msg = { .msg_iov = pieces, .iov_count = 2, .addr = self, .rma_iov = places,
				  .rma_iov_count = 4, .context = CONTEXT(8), .data = 0xabc };
	struct fid_mr *mr;

	WANT(info->tx_attr->rma_iov_limit, 4);
	OK(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 42, 0, &mr, NULL));
	OK(fi_writemsg(ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA));
	for (int told = 0, done = 0; told + done < 2;) {
		struct fi_cq_tagged_entry entry = next();
		told += entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 0xabc;
		done += entry.flags == (FI_RMA | FI_WRITE) && entry.op_context == CONTEXT(8);
		WANT(told <= 1 && done <= 1 && told + done > 0, 1);
		if (told)
			WANT(memcmp(memory, "abc", 4) || memcmp(memory + 32, "defghijk", 9) || memory[50] != 'l', 0);
	}
	msg.msg_iov = &whole;
	msg.iov_count = 1;
	OK(fi_readmsg(ep, &msg, FI_COMPLETION));
	WANT(next().flags, FI_RMA | FI_READ);
	WANT(memcmp(from, back, 12), 0);

	/* Without FI_COMPLETION nobody hears of it, unless a piece fails. */
	OK(fi_readmsg(ep, &msg, 0));
	places[1].key = 43;
	OK(fi_readmsg(ep, &msg, 0));
	next_error(FI_EACCES);
	places[1].key = 42;
	msg.rma_iov_count = 5;
	WANT(fi_readmsg(ep, &msg, 0), -FI_EINVAL);
	msg.rma_iov_count = 3;
	WANT(fi_readmsg(ep, &msg, 0), -FI_EINVAL);

	uint64_t *cells = (uint64_t *)memory, one[3] = { 1, 2, 3 }, old[3] = { 0 };
	struct fi_ioc operand = { one, 3 }, result = { old, 3 };
	struct fi_rma_ioc targets[2] = { { 8, 1, 42 }, { 24, 2, 42 } };
	struct fi_msg_atomic add = { .msg_iov = &operand, .iov_count = 1, .addr = self, .rma_iov = targets,
				     .rma_iov_count = 2, .datatype = FI_UINT64, .op = FI_SUM };
	memset(memory, 0, sizeof memory);
	cells[3] = 10;
	OK(fi_fetch_atomicmsg(ep, &add, &result, NULL, 1, FI_COMPLETION));
	WANT(next().flags, FI_ATOMIC | FI_READ);
	WANT(cells[1] == 1 && cells[3] == 12 && cells[4] == 3, 1);
	WANT(old[0] == 0 && old[1] == 10 && old[2] == 0, 1);
	OK(fi_close(&mr->fid));
}

/* Operand, compare and result buffers and the peer's memory are as long as one another, or nothing happens. */
static void buffers_of_atomics_are_of_one_length(void)
{
	uint64_t memory[8] = { 100, 101, 102, 103 }, one[4] = { 1, 1, 1, 1 }, old[8];
	struct fi_ioc operand = { one, 4 }, compare = { one, 4 }, result = { old, 4 }, halves[2] = { { old, 2 }, { old + 4, 2 } };
	struct fi_rma_ioc place = { 0, 4, 42 }, places[2] = { { 0, 2, 42 }, { 32, 2, 42 } };
	struct fi_msg_atomic add = { .msg_iov = &operand, .iov_count = 1, .addr = self, .rma_iov = &place,
				     .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM };
	struct fi_msg_atomic swap = add, read = add, scattered = add;
	struct fid_mr *mr;

	swap.op = FI_CSWAP;
	read.op = FI_ATOMIC_READ;
	read.iov_count = 0;
	scattered.rma_iov = places;
	scattered.rma_iov_count = 2;
	memset(old, 9, sizeof old);
	OK(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 42, 0, &mr, NULL));
	for (int i = 0; i < 4; i++) {
		result.count = i == 0 ? 2 : 4;
		compare.count = i == 1 ? 2 : 4;
		place.count = i == 2 ? 2 : 4;
		operand.count = i == 3 ? 2 : 4;
		places[1].count = place.count - 2 + (i == 2);
		if (i != 1) {
			WANT(fi_fetch_atomicmsg(ep, &add, &result, NULL, 1, FI_COMPLETION), -FI_EINVAL);
			WANT(fi_fetch_atomicmsg(ep, &scattered, &result, NULL, 1, FI_COMPLETION), -FI_EINVAL);
		}
		WANT(fi_compare_atomicmsg(ep, &swap, &compare, NULL, 1, &result, NULL, 1, FI_COMPLETION), -FI_EINVAL);
	}
	WANT(fi_atomicmsg(ep, &add, FI_COMPLETION), -FI_EINVAL);
	operand.count = 4;
	WANT(fi_fetch_atomicmsg(ep, &add, NULL, NULL, 0, FI_COMPLETION), -FI_EINVAL);
	WANT(fi_compare_atomicmsg(ep, &swap, NULL, NULL, 0, &result, NULL, 1, FI_COMPLETION), -FI_EINVAL);
	WANT(old[0] == old[7] && memory[0] == 100, 1);

	/* Of a read the result alone tells how much; it may be in pieces, and the operand missing. */
	OK(fi_fetch_atomicmsg(ep, &read, halves, NULL, 2, FI_COMPLETION));
	WANT(next().flags, FI_ATOMIC | FI_READ);
	WANT(old[0] == 100 && old[1] == 101 && old[4] == 102 && old[5] == 103 && old[2] == old[7], 1);
	OK(fi_close(&mr->fid));
}

/* Accesses are counted one by one at their target: who wants that names one piece each. */
static void counted_accesses_are_of_one_piece(void)
{
	struct fi_info *hints = asked(FI_RMA | FI_RMA_EVENT), *found;

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	WANT(found->tx_attr->rma_iov_limit, 1);
	hints->tx_attr->rma_iov_limit = 2;
	fi_freeinfo(found);
	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* Before 1.5 there were two modes of memory registration, and FI_MR_BASIC was what all had. */
static void old_programs_find_their_modes(void)
{
	struct fi_info *hints = asked(FI_RMA), *found;
	int modes[] = { FI_MR_UNSPEC, FI_MR_BASIC, FI_MR_SCALABLE };

	for (int i = 0; i < 3; i++) {
		hints->domain_attr->mr_mode = modes[i];
		OK(fi_getinfo(FI_VERSION(1, 0), NULL, NULL, 0, hints, &found));
		WANT(found->domain_attr->mr_mode, modes[i] == FI_MR_UNSPEC ? FI_MR_BASIC : modes[i]);
		fi_freeinfo(found);
	}
	fi_freeinfo(hints);
}

/* Where keys are the provider's to choose, a region that peers do not reach has none that another has. */
static void a_region_for_oneself_has_no_key(void)
{
	struct fi_info *hints = asked(FI_RMA);
	char memory[64];
	struct fid_mr *one, *other, *local;

	hints->domain_attr->mr_mode = FI_MR_BASIC;
	info = offered(hints);
	open_domain();
	OK(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ, 0, 0, 0, &one, NULL));
	OK(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ, 0, 0, 0, &other, NULL));
	OK(fi_mr_reg(domain, memory, 64, FI_SEND, 0, 0, 0, &local, NULL));
	WANT(fi_mr_key(one) != fi_mr_key(other), 1);
	WANT(fi_mr_key(local), FI_KEY_NOTAVAIL);
	OK(fi_close(&local->fid));
	OK(fi_close(&other->fid));
	OK(fi_close(&one->fid));
	close_domain();
	fi_freeinfo(info);
}

/* Messages to oneself of every length about what may be injected, by an endpoint with these hints. */
static void injects_up_to(struct fi_info *hints, size_t most)
{
	static char out[1 << 15], in[1 << 15];
	struct fi_cq_tagged_entry entry;
	size_t lengths[] = { 0, 1, 4096, most - 1, most };

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	WANT(info->tx_attr->inject_size, most);
	open_all();
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		struct iovec iov = { in, sizeof in };
		struct fi_msg_tagged receive = { .msg_iov = &iov, .iov_count = 1, .tag = i, .addr = FI_ADDR_UNSPEC };

		memset(out, 'a' + i, sizeof out);
		OK(fi_tinject(ep, out, lengths[i], self, i));
		/* The buffer is the program's again. */
		memset(out, 0, sizeof out);
		memset(in, 1, sizeof in);
		OK(fi_trecvmsg(ep, &receive, FI_COMPLETION));
		WANT(fi_cq_sread(cq, &entry, 1, NULL, 20000), 1);
		WANT(entry.len, lengths[i]);
		for (size_t k = 0; k < lengths[i]; k++)
			WANT(in[k], 'a' + i);
		WANT(in[lengths[i]], 1);
	}
	WANT(fi_tinject(ep, out, most + 1, self, 0), -FI_EMSGSIZE);
	close_all();
	fi_freeinfo(info);
}

static void as_much_is_injected_as_was_asked_for(void)
{
	struct fi_info *hints = asked(FI_TAGGED);

	injects_up_to(hints, 4096);
	hints->tx_attr->inject_size = 16384;
	injects_up_to(hints, 16384);
	hints->tx_attr->inject_size = 16385;
	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* Where the host has both versions of IP, an endpoint has the one that is asked for. */
static void addresses_are_of_the_version_that_is_wanted(void)
{
	const struct { uint32_t format; size_t len; } versions[] = { { FI_SOCKADDR_IN, 16 }, { FI_SOCKADDR_IN6, 28 } };
	struct fi_info *hints = asked(FI_TAGGED);
	struct fi_cq_tagged_entry entry;
	char name[64];

	for (int i = 0; i < 2; i++) {
		size_t len = sizeof name;

		hints->addr_format = versions[i].format;
		if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info))
			continue;
		WANT(info->addr_format, versions[i].format);
		WANT(info->src_addrlen, versions[i].len);
		open_all();
		OK(fi_getname(&ep->fid, name, &len));
		WANT(len, versions[i].len);
		OK(fi_tinject(ep, name, len, self, 7));
		struct iovec iov = { buffer, sizeof buffer };
		struct fi_msg_tagged receive = { .msg_iov = &iov, .iov_count = 1, .tag = 7, .addr = self };
		OK(fi_trecvmsg(ep, &receive, FI_COMPLETION));
		WANT(fi_cq_sread(cq, &entry, 1, NULL, 20000), 1);
		close_all();
		fi_freeinfo(info);
	}
	/* What the program leaves open follows its peer. */
	hints->addr_format = FI_SOCKADDR;
	if (fi_getinfo(FI_VERSION(1, 17), "fd00::99", "4000", FI_NUMERICHOST, hints, &info) == 0) {
		WANT(info->dest_addrlen, 28);
		if (info->addr_format == FI_SOCKADDR_IN6)
			WANT(info->src_addrlen, 28);
		fi_freeinfo(info);
	}
	fi_freeinfo(hints);
}

int main(void)
{
	struct fi_info *hints = asked(FI_TAGGED | FI_MSG | FI_RMA | FI_ATOMIC);

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	open_all();
	a_counter_may_be_bound_to_an_enabled_endpoint();
	a_search_is_told_and_not_counted();
	a_cancelled_receive_is_named_by_its_tag();
	descriptors_may_come_in_a_list();
	several_pieces_of_a_peers_memory_are_one_operation();
	buffers_of_atomics_are_of_one_length();
	close_all();
	counted_accesses_are_of_one_piece();
	old_programs_find_their_modes();
	fi_freeinfo(info);
	a_region_for_oneself_has_no_key();
	as_much_is_injected_as_was_asked_for();
	addresses_are_of_the_version_that_is_wanted();
	fi_freeinfo(hints);
	return 0;
}
