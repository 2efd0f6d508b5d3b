/* Which objects others need, refuse a second time, and keep from being closed.
 * Prints the first thing that is not as it must be. */
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <string.h>

#include "domain.h"

static struct fid_cq *opened_queue(void)
{
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fid_cq *cq;

	OK(fi_cq_open(domain, &queue, &cq, NULL));
	return cq;
}

static struct fid_ep *opened_endpoint(void)
{
	struct fid_ep *ep;

	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	return ep;
}

/* What enabling an endpoint with these capabilities gives where it has these queues. */
static void want_enabled(uint64_t caps, uint64_t queues, int wanted)
{
	struct fid_cq *cq;
	struct fid_cntr *counter;
	struct fid_ep *ep;

	info = offered(asked(caps));
	open_domain();
	cq = opened_queue();
	OK(fi_cntr_open(domain, NULL, &counter, NULL));
	ep = opened_endpoint();
	if (queues)
		OK(fi_ep_bind(ep, &cq->fid, queues | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(ep, &counter->fid, FI_SEND));
	WANT(fi_enable(ep), wanted);
	OK(fi_close(&ep->fid));
	OK(fi_close(&counter->fid));
	OK(fi_close(&cq->fid));
	close_domain();
	fi_freeinfo(info);
}

/* Failures are told there even if no success is. */
static void each_direction_needs_its_queue(void)
{
	want_enabled(FI_MSG | FI_RMA, 0, -FI_ENOCQ);
	want_enabled(FI_MSG | FI_RMA, FI_TRANSMIT, -FI_ENOCQ);
	want_enabled(FI_MSG | FI_RMA, FI_RECV, -FI_ENOCQ);
	want_enabled(FI_MSG | FI_RMA, FI_TRANSMIT | FI_RECV, 0);
	want_enabled(FI_TAGGED | FI_SEND, FI_TRANSMIT, 0);
	want_enabled(FI_TAGGED | FI_SEND, FI_RECV, -FI_ENOCQ);
	want_enabled(FI_TAGGED | FI_RECV, FI_RECV, 0);
	want_enabled(FI_RMA | FI_WRITE, FI_TRANSMIT, 0);
	want_enabled(FI_RMA | FI_MSG | FI_RECV | FI_WRITE, FI_RECV, -FI_ENOCQ);
	want_enabled(FI_RMA | FI_REMOTE_WRITE, FI_RECV, 0);
	/* Nothing is told of accesses but to counters. */
	want_enabled(FI_RMA | FI_REMOTE_WRITE, 0, 0);
}

static void nothing_is_bound_twice_for_the_same(void)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fid_cntr *one, *other, *late;
	struct fid_cq *cq = opened_queue();
	struct fid_av *second;
	struct fid_ep *ep = opened_endpoint();

	OK(fi_av_open(domain, &table, &second, NULL));
	WANT(fi_ep_bind(ep, &second->fid, 0), -FI_EINVAL);
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	WANT(fi_ep_bind(ep, &cq->fid, FI_RECV), -FI_EINVAL);
	OK(fi_cntr_open(domain, NULL, &one, NULL));
	OK(fi_cntr_open(domain, NULL, &other, NULL));
	OK(fi_cntr_open(domain, NULL, &late, NULL));
	OK(fi_ep_bind(ep, &one->fid, FI_WRITE | FI_READ));
	WANT(fi_ep_bind(ep, &other->fid, FI_SEND | FI_WRITE), -FI_EINVAL);
	OK(fi_ep_bind(ep, &other->fid, FI_SEND));
	OK(fi_ep_bind(ep, &one->fid, FI_REMOTE_WRITE));
	OK(fi_enable(ep));
	WANT(fi_ep_bind(ep, &late->fid, FI_SEND | FI_RECV), -FI_EINVAL);
	OK(fi_ep_bind(ep, &late->fid, FI_RECV));
	OK(fi_close(&second->fid));
	OK(fi_close(&ep->fid));
	OK(fi_close(&late->fid));
	OK(fi_close(&other->fid));
	OK(fi_close(&one->fid));
	OK(fi_close(&cq->fid));
}

/* Closed, it is gone from under those that would write to it. */
static void an_event_queue_is_open_as_long_as_it_is_bound(void)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_eq_attr events = { .wait_obj = FI_WAIT_NONE };
	struct fid_cq *cq = opened_queue();
	struct fid_ep *ep = opened_endpoint();
	struct fid_domain *other;
	struct fid_av *vector;
	struct fid_eq *eq;

	OK(fi_eq_open(fabric, &events, &eq, NULL));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	WANT(fi_close(&eq->fid), -FI_EBUSY);
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_av_open(domain, &table, &vector, NULL));
	OK(fi_av_bind(vector, &eq->fid, 0));
	WANT(fi_close(&eq->fid), -FI_EBUSY);
	OK(fi_close(&vector->fid));
	OK(fi_domain(fabric, info, &other, NULL));
	WANT(fi_domain_bind(other, &av->fid, 0), -FI_EINVAL);
	OK(fi_domain_bind(other, &eq->fid, 0));
	WANT(fi_close(&eq->fid), -FI_EBUSY);
	OK(fi_close(&other->fid));
	OK(fi_close(&eq->fid));
}

static void a_wait_set_wakes_for_events(void)
{
	struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_attr events = { .wait_obj = FI_WAIT_SET, .flags = FI_WRITE };
	struct fi_eq_entry said = { .data = 9 }, heard;
	struct fid_wait *set;
	struct fid_eq *eq;
	uint32_t event;

	WANT(fi_eq_open(fabric, &events, &eq, NULL), -FI_EINVAL);
	OK(fi_wait_open(fabric, &attr, &set));
	events.wait_set = set;
	OK(fi_eq_open(fabric, &events, &eq, NULL));
	WANT(fi_wait(set, 10), -FI_ETIMEDOUT);
	WANT(fi_eq_write(eq, FI_NOTIFY, &said, sizeof said, 0), sizeof said);
	OK(fi_wait(set, -1));
	WANT(fi_eq_sread(eq, &event, &heard, sizeof heard, -1, 0), sizeof heard);
	WANT(event == FI_NOTIFY && heard.data == 9, 1);
	WANT(fi_wait(set, 10), -FI_ETIMEDOUT);
	WANT(fi_close(&set->fid), -FI_EBUSY);
	OK(fi_close(&eq->fid));
	OK(fi_close(&set->fid));
}

static void a_poll_set_tells_of_failures_too(void)
{
	struct fi_poll_attr attr = { 0 };
	struct fid_cntr *counter;
	struct fid_poll *set;
	void *contexts[2];

	OK(fi_cntr_open(domain, NULL, &counter, contexts));
	OK(fi_poll_open(domain, &attr, &set));
	OK(fi_poll_add(set, &counter->fid, 0));
	WANT(fi_poll(set, contexts, 2), 0);
	OK(fi_cntr_adderr(counter, 1));
	WANT(fi_poll(set, contexts, 2), 1);
	WANT(contexts[0] == contexts, 1);
	WANT(fi_poll(set, contexts, 2), 0);
	OK(fi_cntr_add(counter, 1));
	WANT(fi_poll(set, contexts, 2), 1);
	OK(fi_poll_del(set, &counter->fid, 0));
	OK(fi_close(&set->fid));
	OK(fi_close(&counter->fid));
}

/* It promises what would make a table smaller; ours takes any addresses. */
static void an_address_vector_may_be_symmetric(void)
{
	struct fi_av_attr hint = { .type = FI_AV_TABLE, .flags = FI_SYMMETRIC };
	struct fid_av *vector;

	OK(fi_av_open(domain, &hint, &vector, NULL));
	OK(fi_close(&vector->fid));
	hint.flags = FI_READ;
	WANT(fi_av_open(domain, &hint, &vector, NULL), -FI_EBADFLAGS);
}

static void atomics_are_valid_on_endpoints_that_have_them(void)
{
	const uint64_t caps[] = { FI_MSG | FI_RMA, FI_MSG | FI_ATOMIC };

	for (int i = 0; i < 2; i++) {
		struct fi_info *found = offered(asked(caps[i]));
		int wanted = caps[i] & FI_ATOMIC ? 0 : -FI_EOPNOTSUPP;
		struct fid_ep *ep;
		size_t count;

		OK(fi_endpoint(domain, found, &ep, NULL));
		WANT(fi_atomicvalid(ep, FI_UINT64, FI_SUM, &count), wanted);
		WANT(fi_fetch_atomicvalid(ep, FI_UINT64, FI_SUM, &count), wanted);
		WANT(fi_compare_atomicvalid(ep, FI_UINT64, FI_CSWAP, &count), wanted);
		OK(fi_close(&ep->fid));
		fi_freeinfo(found);
	}
}

int main(void)
{
	each_direction_needs_its_queue();
	info = offered(asked(FI_MSG | FI_TAGGED | FI_RMA));
	open_domain();
	nothing_is_bound_twice_for_the_same();
	an_event_queue_is_open_as_long_as_it_is_bound();
	a_wait_set_wakes_for_events();
	a_poll_set_tells_of_failures_too();
	an_address_vector_may_be_symmetric();
	atomics_are_valid_on_endpoints_that_have_them();
	close_domain();
	fi_freeinfo(info);
	return 0;
}
