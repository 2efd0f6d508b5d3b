/* Groups and the operations of all their members: several endpoints of one process, each with a
 * queue of its own. Prints the first thing that is not as it must be. */
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <string.h>

#include "domain.h"

enum { MEMBERS = 7, COUNT = 3000 };

static struct fid_eq *eq[MEMBERS];
static struct fid_cq *cq[MEMBERS];
static struct fid_ep *ep[MEMBERS];
static fi_addr_t number[MEMBERS];

static void open_all(void)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_attr events = { .wait_obj = FI_WAIT_UNSPEC };
	char name[64];

	info = offered(asked(FI_MSG | FI_TAGGED | FI_COLLECTIVE));
	/* All bits of the tags are the program's. */
	WANT(info->ep_attr->mem_tag_format >> 63, 1);
	WANT(info->caps & FI_COLLECTIVE, FI_COLLECTIVE);
	open_domain();
	for (int i = 0; i < MEMBERS; i++) {
		size_t len = sizeof name;

		OK(fi_eq_open(fabric, &events, &eq[i], NULL));
		OK(fi_cq_open(domain, &queue, &cq[i], NULL));
		OK(fi_endpoint(domain, info, &ep[i], NULL));
		OK(fi_ep_bind(ep[i], &av->fid, 0));
		OK(fi_ep_bind(ep[i], &eq[i]->fid, 0));
		OK(fi_ep_bind(ep[i], &cq[i]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(ep[i]));
		OK(fi_getname(&ep[i]->fid, name, &len));
		WANT(fi_av_insert(av, name, 1, &number[i], 0, NULL), 1);
	}
}

static void close_all(void)
{
	for (int i = 0; i < MEMBERS; i++) {
		OK(fi_close(&ep[i]->fid));
		OK(fi_close(&cq[i]->fid));
		OK(fi_close(&eq[i]->fid));
	}
	close_domain();
	fi_freeinfo(info);
}

static struct fid_av_set *some(uint64_t first, uint64_t last, uint64_t stride)
{
	struct fi_av_set_attr range = { .start_addr = first, .end_addr = last, .stride = stride };
	struct fid_av_set *set;

	OK(fi_av_set(av, &range, &set, NULL));
	return set;
}

/* Has every member of the set join it. Nobody reads a queue but that of events. */
static void join(struct fid_av_set *set, uint64_t first, uint64_t stride, struct fid_mc *mc[])
{
	struct fi_eq_entry entry;
	uint32_t event;
	fi_addr_t from;

	OK(fi_av_set_addr(set, &from));
	for (uint64_t i = first; i < MEMBERS; i += stride)
		OK(fi_join_collective(ep[i], from, set, 0, &mc[i], &mc[i]));
	for (uint64_t i = first; i < MEMBERS; i += stride) {
		WANT(fi_eq_sread(eq[i], &event, &entry, sizeof entry, 20000, 0), sizeof entry);
		WANT(event, FI_JOIN_COMPLETE);
		WANT(entry.fid == &mc[i]->fid, 1);
		WANT(entry.context == &mc[i], 1);
	}
}

/* The end of a member's operation; the others' queues are left alone meanwhile. */
static void want_end(int member, void *context)
{
	struct fi_cq_tagged_entry entry;

	WANT(fi_cq_sread(cq[member], &entry, 1, NULL, 20000), 1);
	WANT(entry.op_context == context, 1);
	WANT(entry.flags, FI_COLLECTIVE);
}

static void every_operation_does_as_its_name_says(struct fid_mc *mc[], uint64_t first, uint64_t stride)
{
	static uint64_t in[MEMBERS][COUNT * MEMBERS], out[MEMBERS][COUNT * MEMBERS];
	uint64_t i, k, n = (MEMBERS - first + stride - 1) / stride, root = first + stride * (n - 1), sum = 0;

#define EACH for (i = first; i < MEMBERS; i += stride)
	EACH OK(fi_barrier(ep[i], fi_mc_addr(mc[i]), &in[i]));
	EACH want_end(i, &in[i]);

	EACH memset(out[i], 0, sizeof out[i]);
	EACH for (k = 0; k < COUNT; k++)
		in[i][k] = i * k;
	EACH sum += i;
	EACH OK(fi_allreduce(ep[i], in[i], COUNT, NULL, out[i], NULL, fi_mc_addr(mc[i]), FI_UINT64,
			     FI_SUM, 0, &in[i]));
	EACH want_end(i, &in[i]);
	EACH for (k = 0; k < COUNT; k++)
		WANT(out[i][k], sum * k);

	EACH OK(fi_allgather(ep[i], in[i], COUNT, NULL, out[i], NULL, fi_mc_addr(mc[i]), FI_UINT64, 0, &in[i]));
	EACH want_end(i, &in[i]);
	EACH for (k = 0; k < n * COUNT; k++)
		WANT(out[i][k], (first + k / COUNT * stride) * (k % COUNT));

	for (k = 0; k < n * COUNT; k++)
		in[root][k] = k;
	EACH OK(fi_scatter(ep[i], i == root ? in[i] : NULL, COUNT, NULL, out[i], NULL, fi_mc_addr(mc[i]),
			   number[root], FI_UINT64, 0, &in[i]));
	EACH want_end(i, &in[i]);
	EACH for (k = 0; k < COUNT; k++)
		WANT(out[i][k], (i - first) / stride * COUNT + k);

	for (k = 0; k < COUNT; k++)
		out[root][k] = k + 1;
	/* Two at once. */
	EACH OK(fi_broadcast(ep[i], out[i], COUNT, NULL, fi_mc_addr(mc[i]), number[root], FI_UINT64, 0, &in[i]));
	EACH OK(fi_barrier(ep[i], fi_mc_addr(mc[i]), &out[i]));
	EACH {
		struct fi_cq_tagged_entry one, other;

		WANT(fi_cq_sread(cq[i], &one, 1, NULL, 20000), 1);
		WANT(fi_cq_sread(cq[i], &other, 1, NULL, 20000), 1);
		WANT(one.op_context != other.op_context, 1);
	}
	EACH for (k = 0; k < COUNT; k++)
		WANT(out[i][k], k + 1);
#undef EACH
}

/* What the members tell each other is out of reach of receives and searches for any tag, be they posted first
 * or last. */
static void messages_of_groups_are_not_the_programs(struct fid_mc *mc[])
{
	struct fi_msg_tagged any = { .addr = FI_ADDR_UNSPEC, .ignore = ~0ULL, .context = &any };
	struct fi_cq_err_entry missed = { 0 };
	struct fi_cq_tagged_entry entry;
	char text[MEMBERS][8];
	int i;

	for (i = 0; i < MEMBERS; i += 2)
		OK(fi_trecv(ep[i], text[i], sizeof text[i], NULL, FI_ADDR_UNSPEC, 0, ~0ULL, text[i]));
	for (i = 0; i < MEMBERS - 1; i++)
		OK(fi_barrier(ep[i], fi_mc_addr(mc[i]), mc[i]));
	/* The last member's searches find none of what has come for it, and throw none of it away. */
	for (i = 0; i < 100; i++) {
		OK(fi_trecvmsg(ep[MEMBERS - 1], &any, FI_PEEK | FI_DISCARD));
		WANT(fi_cq_sread(cq[MEMBERS - 1], &entry, 1, NULL, 20000), -FI_EAVAIL);
		WANT(fi_cq_readerr(cq[MEMBERS - 1], &missed, 0), 1);
		WANT(missed.err, FI_ENOMSG);
	}
	OK(fi_barrier(ep[MEMBERS - 1], fi_mc_addr(mc[MEMBERS - 1]), mc[MEMBERS - 1]));
	for (i = 0; i < MEMBERS; i++)
		want_end(i, mc[i]);
	/* The receives are there yet, for tags with any bit. */
	for (i = 0; i < MEMBERS; i += 2) {
		OK(fi_tinject(ep[0], "hello", 6, number[i], 1ULL << 63));
		WANT(fi_cq_sread(cq[i], &entry, 1, NULL, 20000), 1);
		WANT(entry.op_context == text[i] && entry.tag == 1ULL << 63, 1);
	}
}

static void sets_are_made_of_sets(void)
{
	struct fid_av_set *odd = some(1, MEMBERS - 1, 2), *high = some(4, MEMBERS - 1, 1);
	struct fid_av_set *none = some(FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 1);
	struct fid_mc *mc;

	/* 1 3 5, then 1 3 5 4 6, then 4 5 6, then without 5. */
	OK(fi_av_set_union(odd, high));
	OK(fi_av_set_intersect(odd, high));
	OK(fi_av_set_remove(odd, number[5]));
	WANT(fi_av_set_remove(odd, number[5]), -FI_EINVAL);
	OK(fi_av_set_insert(none, number[4]));
	WANT(fi_av_set_insert(none, number[4]), -FI_EINVAL);
	WANT(fi_av_set_insert(none, 1000), -FI_EINVAL);
	OK(fi_av_set_diff(odd, none));
	/* 6 is left, and others are no members. */
	WANT(fi_join_collective(ep[5], 0, odd, 0, &mc, NULL), -FI_EINVAL);
	OK(fi_join_collective(ep[6], 0, odd, 0, &mc, NULL));
	WANT(fi_close(&av->fid), -FI_EBUSY);
	OK(fi_close(&mc->fid));
	OK(fi_close(&odd->fid));
	OK(fi_close(&high->fid));
	OK(fi_close(&none->fid));
}

static void what_is_not_there_is_refused(struct fid_mc *mc[])
{
	struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_DOUBLE };
	struct fi_info *plain = offered(asked(FI_MSG));
	uint64_t word = 0;

	WANT(plain->caps & FI_COLLECTIVE, 0);
	fi_freeinfo(plain);
	OK(fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
	WANT(attr.datatype_attr.size, sizeof(double));
	OK(fi_query_collective(domain, FI_BARRIER, &attr, 0));
	WANT(fi_query_collective(domain, FI_ALLTOALL, &attr, 0), -FI_EOPNOTSUPP);
	attr.op = FI_BOR;
	WANT(fi_query_collective(domain, FI_ALLREDUCE, &attr, 0), -FI_EOPNOTSUPP);
	attr.op = FI_ATOMIC_WRITE;
	attr.datatype = FI_UINT64;
	WANT(fi_query_collective(domain, FI_ALLREDUCE, &attr, 0), -FI_EOPNOTSUPP);
	WANT(fi_alltoall(ep[0], &word, 1, NULL, &word, NULL, fi_mc_addr(mc[0]), FI_UINT64, 0, NULL), -FI_ENOSYS);
	WANT(fi_barrier(ep[0], 12345, NULL), -FI_EINVAL);
	WANT(fi_broadcast(ep[0], &word, 1, NULL, fi_mc_addr(mc[0]), 1000, FI_UINT64, 0, NULL), -FI_EINVAL);
}

/* Members that wait for one that is gone are told so. */
static void a_member_that_is_gone_fails_the_operation(struct fid_mc *mc[])
{
	struct fi_cq_err_entry failure = { 0 };
	struct fi_cq_tagged_entry entry;

	OK(fi_close(&mc[1]->fid));
	OK(fi_close(&ep[1]->fid));
	OK(fi_barrier(ep[0], fi_mc_addr(mc[0]), &failure));
	WANT(fi_cq_sread(cq[0], &entry, 1, NULL, 20000), -FI_EAVAIL);
	WANT(fi_cq_readerr(cq[0], &failure, 0), 1);
	WANT(failure.op_context == &failure, 1);
	WANT(failure.err != 0, 1);
}

int main(void)
{
	struct fid_mc *all[MEMBERS], *odd[MEMBERS];
	struct fid_av_set *set;

	open_all();
	set = some(0, MEMBERS - 1, 1);
	join(set, 0, 1, all);
	OK(fi_close(&set->fid));
	every_operation_does_as_its_name_says(all, 0, 1);
	messages_of_groups_are_not_the_programs(all);
	set = some(1, MEMBERS - 1, 2);
	join(set, 1, 2, odd);
	OK(fi_close(&set->fid));
	every_operation_does_as_its_name_says(odd, 1, 2);
	every_operation_does_as_its_name_says(all, 0, 1);
	sets_are_made_of_sets();
	what_is_not_there_is_refused(all);
	for (int i = 1; i < MEMBERS; i += 2)
		OK(fi_close(&odd[i]->fid));
	a_member_that_is_gone_fails_the_operation(all);
	for (int i = 0; i < MEMBERS; i++)
		if (i != 1)
			OK(fi_close(&all[i]->fid));
	OK(fi_endpoint(domain, info, &ep[1], NULL));
	close_all();
	puts("collectives: all as it must be");
	return 0;
}
