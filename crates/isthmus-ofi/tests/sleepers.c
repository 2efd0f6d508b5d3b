/* Threads that sleep for completions while others poll the same endpoint, sleep on the same
 * queue, wait for the same counter, or finish by a call what is slept for: none is forgotten.
 * Ends by SIGALRM if one is. */
#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <unistd.h>

#include "domain.h"

enum { ROUNDS = 100, LIMIT_S = 100 };

static struct fid_cq *sent, *received, *other;
static struct fid_cntr *count;
static struct fid_ep *here, *there;
static fi_addr_t to;
static char in[8], out[8];
static struct fi_context2 cancelled;

static struct fid_ep *opened(struct fid_cq *transmit, struct fid_cq *receive)
{
	struct fid_ep *ep;

	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &transmit->fid, FI_TRANSMIT));
	OK(fi_ep_bind(ep, &receive->fid, FI_RECV));
	return ep;
}

static void open_all(void)
{
	struct fi_info *hints = asked(FI_MSG);
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
	char name[64];
	size_t len = sizeof name;

	hints->domain_attr->threading = FI_THREAD_SAFE;
	info = offered(hints);
	open_domain();
	OK(fi_cq_open(domain, &queue, &sent, NULL));
	OK(fi_cq_open(domain, &queue, &received, NULL));
	OK(fi_cq_open(domain, &queue, &other, NULL));
	OK(fi_cntr_open(domain, NULL, &count, NULL));
	here = opened(sent, received);
	OK(fi_ep_bind(here, &count->fid, FI_RECV));
	there = opened(other, other);
	OK(fi_enable(here));
	OK(fi_enable(there));
	OK(fi_getname(&here->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
}

static void close_all(void)
{
	struct fid *all[] = { &here->fid, &there->fid, &count->fid, &sent->fid, &received->fid,
			      &other->fid, &av->fid, &domain->fid, &fabric->fid };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		OK(fi_close(all[i]));
	fi_freeinfo(info);
}

/* Sleeps until one message has come. */
static void *one_entry(void *unused)
{
	struct fi_cq_entry entry;
	long got;

	do
		got = fi_cq_sread(received, &entry, 1, NULL, -1);
	while (got == -FI_EAGAIN || got == -FI_EINTR);
	WANT(got, 1);
	return unused;
}

static void *one_cancelled(void *unused)
{
	struct fi_cq_entry entry;
	struct fi_cq_err_entry failed = { 0 };
	long got;

	do
		got = fi_cq_sread(received, &entry, 1, NULL, -1);
	while (got == -FI_EAGAIN || got == -FI_EINTR);
	WANT(got, -FI_EAVAIL);
	WANT(fi_cq_readerr(received, &failed, 0), 1);
	WANT(failed.err, FI_ECANCELED);
	return unused;
}

static void *counted(void *threshold)
{
	OK(fi_cntr_wait(count, (long)threshold, -1));
	return NULL;
}

static void poll_in_vain(int times)
{
	struct fi_cq_entry entry;

	for (int i = 0; i < times; i++) {
		usleep(500);
		WANT(fi_cq_read(sent, &entry, 1), -FI_EAGAIN);
	}
}

static void message(void)
{
	OK(fi_recv(here, in, 1, NULL, FI_ADDR_UNSPEC, NULL));
	while (fi_inject(there, out, 1, to) == -FI_EAGAIN)
		;
}

int main(void)
{
	pthread_t threads[3];
	uint64_t total = 0;

	alarm(LIMIT_S);
	open_all();
	for (int i = 0; i < ROUNDS; i++) {
		OK(pthread_create(threads, NULL, one_entry, NULL));
		/* The last look comes at a random moment of the other's falling asleep. */
		poll_in_vain(i % 4);
		message();
		OK(pthread_join(threads[0], NULL));
		total++;
	}
	for (int i = 0; i < ROUNDS; i++) {
		for (int k = 0; k < 2; k++)
			OK(pthread_create(threads + k, NULL, one_entry, NULL));
		poll_in_vain(i % 3);
		message();
		message();
		for (int k = 0; k < 2; k++)
			OK(pthread_join(threads[k], NULL));
		total += 2;
	}
	for (int i = 0; i < ROUNDS; i++) {
		for (long k = 0; k < 3; k++)
			OK(pthread_create(threads + k, NULL, counted, (void *)(total + 1 + k / 2)));
		poll_in_vain(i % 3);
		message();
		message();
		for (int k = 0; k < 3; k++)
			OK(pthread_join(threads[k], NULL));
		total += 2;
		for (int k = 0; k < 2; k++)
			one_entry(NULL);
	}
	/* The thread sleeps by now, most times, and nothing but these calls will wake it. */
	for (int i = 0; i < ROUNDS / 4; i++) {
		while (fi_inject(there, out, 1, to) == -FI_EAGAIN)
			;
		poll_in_vain(4);
		OK(pthread_create(threads, NULL, one_entry, NULL));
		usleep(i % 4 * 5000);
		OK(fi_recv(here, in, 1, NULL, FI_ADDR_UNSPEC, NULL));
		OK(pthread_join(threads[0], NULL));
	}
	for (int i = 0; i < ROUNDS / 4; i++) {
		OK(fi_recv(here, in, 1, NULL, FI_ADDR_UNSPEC, &cancelled));
		OK(pthread_create(threads, NULL, one_cancelled, NULL));
		usleep(i % 4 * 5000);
		OK(fi_cancel(&here->fid, &cancelled));
		OK(pthread_join(threads[0], NULL));
	}
	close_all();
	return 0;
}
