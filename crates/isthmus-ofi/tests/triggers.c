/* Operations that wait for counters (fi_trigger(3)) and counters of single memory regions
 * (fi_mr_bind), on one endpoint that talks to itself. Prints the first thing that is not as
 * it must be. */
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <string.h>

#include "domain.h"

#define KEY 7
#define MANY 3000

static struct fid_cq *cq;
static struct fid_cntr *received, *tick, *done, *written_to, *read_from;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t self;
static char memory[256];

static void open_all(void)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED };
	char name[64];
	size_t len = sizeof name;

	info = offered(asked(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RMA_EVENT | FI_TRIGGER));
	open_domain();
	OK(fi_cq_open(domain, &queue, &cq, NULL));
	OK(fi_cntr_open(domain, NULL, &received, NULL));
	OK(fi_cntr_open(domain, NULL, &tick, NULL));
	OK(fi_cntr_open(domain, NULL, &done, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &received->fid, FI_RECV));
	OK(fi_cntr_open(domain, NULL, &written_to, NULL));
	OK(fi_cntr_open(domain, NULL, &read_from, NULL));
	OK(fi_ep_bind(ep, &written_to->fid, FI_REMOTE_WRITE));
	OK(fi_ep_bind(ep, &read_from->fid, FI_REMOTE_READ));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, KEY,
		     FI_RMA_EVENT, &mr, NULL));
}

static void close_all(void)
{
	OK(fi_close(&ep->fid));
	OK(fi_close(&mr->fid));
	OK(fi_close(&done->fid));
	OK(fi_close(&tick->fid));
	OK(fi_close(&received->fid));
	OK(fi_close(&written_to->fid));
	OK(fi_close(&read_from->fid));
	OK(fi_close(&cq->fid));
	close_domain();
	fi_freeinfo(info);
}

static struct fi_cq_tagged_entry next(void)
{
	struct fi_cq_tagged_entry entry;

	while (fi_cq_read(cq, &entry, 1) != 1)
		;
	return entry;
}

static void nothing_more(void)
{
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < 1000; i++)
		WANT(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
}

/* A counter that counts from 0 again. */
static void zero(struct fid_cntr *cntr)
{
	OK(fi_cntr_set(cntr, 0));
	while (fi_cntr_read(cntr) != 0)
		;
}

static void send_at(struct fi_triggered_context *context, uint64_t threshold, char *byte)
{
	struct iovec iov = { byte, 1 };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .addr = self, .context = context };

	context->event_type = FI_TRIGGER_THRESHOLD;
	context->trigger.threshold.cntr = tick;
	context->trigger.threshold.threshold = threshold;
	OK(fi_sendmsg(ep, &message, FI_TRIGGER | FI_COMPLETION));
}

static void an_operation_waits_for_its_counter(void)
{
	struct fi_triggered_context context;
	char in = 0, out = 'x';
	void *seen[2];

	zero(tick);
	OK(fi_recv(ep, &in, 1, NULL, FI_ADDR_UNSPEC, &in));
	send_at(&context, 2, &out);
	OK(fi_cntr_add(tick, 1));
	nothing_more();
	OK(fi_cntr_add(tick, 1));
	for (int i = 0; i < 2; i++)
		seen[i] = next().op_context;
	WANT(seen[0] == &context || seen[1] == &context, 1);
	WANT(in, 'x');
	/* Where the counter is there already, it goes at once. */
	OK(fi_recv(ep, &in, 1, NULL, FI_ADDR_UNSPEC, &in));
	send_at(&context, 1, &out);
	next();
	next();
}

static void thresholds_give_the_order_then_posting(void)
{
	static const int posted[] = { 9, 3, 3, 5, 1, 9, 2, 3 };
	static const char sorted[] = "egbchdaf";
	struct fi_triggered_context context[8];
	char in[8], out[] = "abcdefgh";

	zero(tick);
	for (int i = 0; i < 8; i++) {
		OK(fi_recv(ep, in + i, 1, NULL, FI_ADDR_UNSPEC, NULL));
		send_at(context + i, posted[i], out + i);
	}
	OK(fi_cntr_add(tick, 9));
	for (int i = 0; i < 16; i++)
		next();
	WANT(memcmp(in, sorted, 8), 0);
}

static void what_waits_can_be_cancelled(void)
{
	struct fi_triggered_context context;
	struct fi_cq_err_entry error = { 0 };
	struct fi_cq_tagged_entry entry;
	char out = 'y';

	zero(tick);
	send_at(&context, 1, &out);
	WANT(fi_cancel(&ep->fid, &out), -FI_ENOENT);
	OK(fi_cancel(&ep->fid, &context));
	WANT(fi_cq_read(cq, &entry, 1), -FI_EAVAIL);
	WANT(fi_cq_readerr(cq, &error, 0), 1);
	WANT(error.err, FI_ECANCELED);
	WANT(error.op_context == &context, 1);
	OK(fi_cntr_add(tick, 1));
	nothing_more();
	/* A counter's errors count as well. */
	send_at(&context, 3, &out);
	OK(fi_cntr_adderr(tick, 2));
	OK(fi_recv(ep, &out, 1, NULL, FI_ADDR_UNSPEC, NULL));
	next();
	next();
	OK(fi_cntr_seterr(tick, 0));
}

static void more_than_there_is_room_for_goes_in_time(void)
{
	static struct fi_triggered_context context[MANY];
	static char out[MANY], in[MANY];

	zero(tick);
	for (int i = 0; i < MANY; i++) {
		out[i] = i % 251;
		OK(fi_recv(ep, in + i, 1, NULL, FI_ADDR_UNSPEC, NULL));
		send_at(context + i, 1, out + i);
	}
	OK(fi_cntr_add(tick, 1));
	for (int i = 0; i < 2 * MANY; i++)
		next();
	WANT(memcmp(in, out, MANY), 0);
}

/* Without any call that turns this endpoint: what comes is passed on to another, which alone is
 * looked at. */
static void triggers_go_off_while_the_program_computes(void)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_cq_entry entry;
	struct fid_cq *watched;
	struct fid_ep *there;
	fi_addr_t to;
	char name[64], in, passed = 0, out = 'p';
	size_t len = sizeof name;
	struct iovec iov = { &out, 1 };
	struct fi_triggered_context context = { .event_type = FI_TRIGGER_THRESHOLD };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .context = &context };

	OK(fi_cq_open(domain, &queue, &watched, NULL));
	OK(fi_endpoint(domain, info, &there, NULL));
	OK(fi_ep_bind(there, &av->fid, 0));
	OK(fi_ep_bind(there, &watched->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(there));
	OK(fi_getname(&there->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
	OK(fi_recv(there, &passed, 1, NULL, FI_ADDR_UNSPEC, NULL));
	zero(received);
	message.addr = to;
	context.trigger.threshold.cntr = received;
	context.trigger.threshold.threshold = 1;
	OK(fi_recv(ep, &in, 1, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_sendmsg(ep, &message, FI_TRIGGER | FI_COMPLETION));
	OK(fi_send(ep, &out, 1, NULL, self, NULL));
	while (fi_cq_read(watched, &entry, 1) != 1)
		;
	WANT(passed, 'p');
	for (int i = 0; i < 3; i++)
		next();
	OK(fi_close(&there->fid));
	OK(fi_close(&watched->fid));
}

static struct fi_deferred_work work[4];

static void queue(struct fi_deferred_work *it, uint64_t threshold, int type, void *op)
{
	it->threshold = threshold;
	it->triggering_cntr = tick;
	it->completion_cntr = type < FI_OP_CNTR_SET ? done : NULL;
	it->op_type = type;
	it->op.msg = op;
	OK(fi_control(&domain->fid, FI_QUEUE_WORK, it));
}

static void deferred_messages_are_counted_and_not_entered(void)
{
	char in[2][8] = { "", "" }, out[8] = "later";
	struct iovec to = { out, 6 }, from[2] = { { in[0], 6 }, { in[1], 6 } };
	struct fi_op_msg recv = { ep, { .msg_iov = from, .iov_count = 1, .addr = FI_ADDR_UNSPEC }, 0 };
	struct fi_op_msg send = { ep, { .msg_iov = &to, .iov_count = 1, .addr = self }, 0 };
	struct fi_op_tagged trecv = { ep, { .msg_iov = from + 1, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
					    .tag = 5, .context = &trecv }, FI_COMPLETION };
	struct fi_op_tagged tsend = { ep, { .msg_iov = &to, .iov_count = 1, .addr = self, .tag = 5 }, 0 };

	zero(tick);
	zero(done);
	zero(received);
	queue(work, 1, FI_OP_RECV, &recv);
	queue(work + 1, 1, FI_OP_SEND, &send);
	queue(work + 2, 2, FI_OP_TRECV, &trecv);
	queue(work + 3, 2, FI_OP_TSEND, &tsend);
	OK(fi_cntr_add(tick, 1));
	OK(fi_cntr_wait(done, 2, -1));
	nothing_more();
	WANT(fi_cntr_read(received), 0);
	OK(fi_cntr_add(tick, 1));
	OK(fi_cntr_wait(done, 4, -1));
	/* One asked for an entry. */
	WANT(next().op_context == &trecv, 1);
	nothing_more();
	WANT(fi_cntr_read(received), 1);
	OK(strcmp(in[0], "later") | strcmp(in[1], "later"));
}

static void deferred_memory_operations_follow_each_other(void)
{
	uint64_t operand = 5, compare = 12, result = 0, earlier = 0;
	struct iovec to = { &operand, 8 }, from = { &result, 8 };
	struct fi_ioc one = { &operand, 1 }, fetched = { &earlier, 1 }, wanted = { &compare, 1 };
	struct fi_rma_iov remote = { 0, 8, KEY };
	struct fi_rma_ioc word = { 0, 1, KEY };
	struct fi_op_rma write = { ep, { .msg_iov = &to, .iov_count = 1, .addr = self,
					 .rma_iov = &remote, .rma_iov_count = 1 }, FI_DELIVERY_COMPLETE };
	struct fi_op_rma read = { ep, { .msg_iov = &from, .iov_count = 1, .addr = self,
					.rma_iov = &remote, .rma_iov_count = 1 }, 0 };
	struct fi_msg_atomic sum = { .msg_iov = &one, .iov_count = 1, .addr = self, .rma_iov = &word,
				     .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM };
	struct fi_op_atomic add = { ep, sum, 0 };
	struct fi_op_fetch_atomic fetch = { ep, sum, { &fetched, NULL, 1 }, 0 };
	struct fi_op_compare_atomic swap = { ep, sum, { &fetched, NULL, 1 }, { &wanted, NULL, 1 }, 0 };

	memset(memory, 0, sizeof memory);
	zero(done);
	for (int i = 0; i < 5; i++) {
		zero(tick);
		switch (i) {
		case 0: queue(work, 1, FI_OP_WRITE, &write); break;
		case 1: queue(work, 1, FI_OP_READ, &read); break;
		case 2: queue(work, 1, FI_OP_ATOMIC, &add); break;
		case 3: queue(work, 1, FI_OP_FETCH_ATOMIC, &fetch); break;
		case 4: swap.msg.op = FI_CSWAP; compare = 15; queue(work, 1, FI_OP_COMPARE_ATOMIC, &swap);
		}
		nothing_more();
		WANT(fi_cntr_read(done), i);
		OK(fi_cntr_add(tick, 1));
		OK(fi_cntr_wait(done, i + 1, -1));
		if (i == 3)
			WANT(earlier, 10);
	}
	WANT(result, 5);
	WANT(earlier, 15);
	WANT(*(uint64_t *)memory, 5);
	nothing_more();
}

static void deferred_counting_cancelling_and_flushing(void)
{
	struct fi_op_cntr five = { done, 5 };

	zero(tick);
	zero(done);
	queue(work, 1, FI_OP_CNTR_SET, &five);
	queue(work + 1, 1, FI_OP_CNTR_ADD, &five);
	OK(fi_cntr_add(tick, 1));
	WANT(fi_cntr_read(done), 10);
	queue(work, 3, FI_OP_CNTR_ADD, &five);
	queue(work + 1, 2, FI_OP_CNTR_ADD, &five);
	OK(fi_control(&domain->fid, FI_CANCEL_WORK, work));
	WANT(fi_control(&domain->fid, FI_CANCEL_WORK, work), -FI_ENOENT);
	OK(fi_cntr_add(tick, 2));
	WANT(fi_cntr_read(done), 15);
	queue(work, 4, FI_OP_CNTR_ADD, &five);
	/* A counter that something waits for stays open. */
	WANT(fi_close(&tick->fid), -FI_EBUSY);
	OK(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
	OK(fi_cntr_add(tick, 1));
	WANT(fi_cntr_read(done), 15);
}

static void what_is_wrong_is_refused(void)
{
	struct fi_triggered_context context = { .event_type = FI_TRIGGER_XPU };
	struct iovec iov = { memory, 1 };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .addr = self, .context = &context };
	struct fi_op_msg send = { ep, message, FI_INJECT };
	struct fi_op_cntr five = { done, 5 };

	WANT(fi_sendmsg(ep, &message, FI_TRIGGER), -FI_ENOSYS);
	context.event_type = FI_TRIGGER_THRESHOLD;
	WANT(fi_sendmsg(ep, &message, FI_TRIGGER), -FI_EINVAL);
	context.trigger.threshold.cntr = tick;
	WANT(fi_sendmsg(ep, &message, FI_TRIGGER | FI_INJECT), -FI_ENOSYS);
	WANT(fi_recvmsg(ep, &message, FI_TRIGGER | FI_MULTI_RECV), -FI_ENOSYS);
	work->op_type = FI_OP_SEND;
	work->op.msg = &send;
	work->triggering_cntr = NULL;
	WANT(fi_control(&domain->fid, FI_QUEUE_WORK, work), -FI_EINVAL);
	work->triggering_cntr = tick;
	WANT(fi_control(&domain->fid, FI_QUEUE_WORK, work), -FI_EBADFLAGS);
	work->op_type = FI_OP_CNTR_ADD;
	work->op.cntr = &five;
	work->completion_cntr = done;
	WANT(fi_control(&domain->fid, FI_QUEUE_WORK, work), -FI_EINVAL);
	WANT(fi_control(&domain->fid, FI_QUEUE_WORK, NULL), -FI_EINVAL);
}

static void a_region_counts_its_own_accesses(void)
{
	static char other[64];
	struct fid_mr *elsewhere, *local;
	struct fid_cntr *writes, *reads;
	char byte = 1;

	OK(fi_cntr_open(domain, NULL, &writes, NULL));
	OK(fi_cntr_open(domain, NULL, &reads, NULL));
	OK(fi_mr_reg(domain, other, sizeof other, FI_REMOTE_WRITE, 0, KEY + 1, 0, &elsewhere, NULL));
	OK(fi_mr_reg(domain, other, sizeof other, FI_SEND, 0, KEY + 2, 0, &local, NULL));
	WANT(fi_mr_bind(local, &writes->fid, FI_REMOTE_WRITE), -FI_EINVAL);
	WANT(fi_mr_bind(mr, &writes->fid, FI_SEND), -FI_EBADFLAGS);
	OK(fi_mr_bind(mr, &writes->fid, FI_REMOTE_WRITE));
	OK(fi_mr_bind(mr, &reads->fid, FI_REMOTE_READ));
	for (int i = 0; i < 3; i++) {
		OK(fi_write(ep, &byte, 1, NULL, self, i, KEY, NULL));
		OK(fi_write(ep, &byte, 1, NULL, self, i, KEY + 1, NULL));
	}
	OK(fi_read(ep, &byte, 1, NULL, self, 0, KEY, NULL));
	OK(fi_atomic(ep, &byte, 1, NULL, self, 9, KEY, FI_UINT8, FI_SUM, NULL));
	OK(fi_cntr_wait(writes, 4, -1));
	OK(fi_cntr_wait(reads, 1, -1));
	for (int i = 0; i < 8; i++)
		next();
	WANT(fi_cntr_read(writes), 4);
	WANT(fi_cntr_read(reads), 1);
	WANT(fi_close(&writes->fid), -FI_EBUSY);
	OK(fi_close(&mr->fid));
	OK(fi_close(&local->fid));
	OK(fi_close(&elsewhere->fid));
	OK(fi_close(&writes->fid));
	OK(fi_close(&reads->fid));
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
}

/* An endpoint counts atomics that fetch and compare as reading (fi_endpoint(3)), a region what they do to it. */
static void accesses_that_fetch_are_counted_as_reading(void)
{
	static uint64_t word;
	uint64_t writes = fi_cntr_read(written_to), reads = fi_cntr_read(read_from), one = 1, old;
	struct fid_cntr *changes, *looks;
	struct fid_mr *region;

	OK(fi_cntr_open(domain, NULL, &changes, NULL));
	OK(fi_cntr_open(domain, NULL, &looks, NULL));
	OK(fi_mr_reg(domain, &word, sizeof word, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, KEY + 3, FI_RMA_EVENT,
		     &region, NULL));
	OK(fi_mr_bind(region, &changes->fid, FI_REMOTE_WRITE));
	OK(fi_mr_bind(region, &looks->fid, FI_REMOTE_READ));
#define PLACE NULL, self, 0, KEY + 3
	OK(fi_write(ep, &one, sizeof one, PLACE, NULL));
	OK(fi_atomic(ep, &one, 1, PLACE, FI_UINT64, FI_SUM, NULL));
	next();
	next();
	OK(fi_cntr_wait(changes, 2, -1));
	OK(fi_cntr_wait(written_to, writes + 2, -1));
	WANT(fi_cntr_read(read_from) - reads, 0);
	OK(fi_read(ep, &old, sizeof old, PLACE, NULL));
	OK(fi_fetch_atomic(ep, &one, 1, NULL, &old, PLACE, FI_UINT64, FI_SUM, NULL));
	OK(fi_fetch_atomic(ep, NULL, 1, NULL, &old, PLACE, FI_UINT64, FI_ATOMIC_READ, NULL));
	OK(fi_compare_atomic(ep, &one, 1, NULL, &one, NULL, &old, PLACE, FI_UINT64, FI_CSWAP, NULL));
#undef PLACE
	for (int i = 0; i < 4; i++)
		next();
	OK(fi_cntr_wait(changes, 4, -1));
	OK(fi_cntr_wait(looks, 2, -1));
	OK(fi_cntr_wait(read_from, reads + 4, -1));
	WANT(fi_cntr_read(written_to) - writes, 2);
	WANT(fi_cntr_read(read_from) - reads, 4);
	OK(fi_close(&region->fid));
	OK(fi_close(&changes->fid));
	OK(fi_close(&looks->fid));
}

/* What still waits when its endpoint ends is dropped. */
static void the_end_drops_what_waits(void)
{
	static struct fi_triggered_context context;
	static char out = 'z';
	struct fi_op_cntr five = { done, 5 };

	zero(tick);
	send_at(&context, 1, &out);
	queue(work, 1, FI_OP_CNTR_ADD, &five);
	OK(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
}

int main(void)
{
	open_all();
	an_operation_waits_for_its_counter();
	thresholds_give_the_order_then_posting();
	what_waits_can_be_cancelled();
	more_than_there_is_room_for_goes_in_time();
	triggers_go_off_while_the_program_computes();
	deferred_messages_are_counted_and_not_entered();
	deferred_memory_operations_follow_each_other();
	deferred_counting_cancelling_and_flushing();
	what_is_wrong_is_refused();
	a_region_counts_its_own_accesses();
	accesses_that_fetch_are_counted_as_reading();
	the_end_drops_what_waits();
	close_all();
	return 0;
}
