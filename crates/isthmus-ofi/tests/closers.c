/* Endpoints that come and go while other threads read, count and sleep on the queue and the
 * counters that they feed, alone or beside others: no thread waits for another for ever, and no
 * message is lost or forgotten. Ends by SIGALRM if one is. */
#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "domain.h"

enum { ROUNDS = 24, MOST = 3, MESSAGES = 20, WRITES = 50, KEY = 7, LIMIT_S = 100 };

static struct fid_mr *mr;
static struct fid_cntr *accessed;
/* What sends to all others. */
static struct fid_cq *sent;
static struct fid_ep *from;
static fi_addr_t self;
static char memory[64], in[MOST * MESSAGES], out[8];

/* What the threads look at, anew in each round. */
static struct fid_cq *queue;
static struct fid_cntr *count;
static atomic_int stop;
static atomic_long got;

static struct fid_ep *opened(struct fid_cq *cq, struct fid_cntr *cntr)
{
	struct fid_ep *ep;

	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (cntr)
		OK(fi_ep_bind(ep, &cntr->fid, FI_RECV));
	OK(fi_enable(ep));
	return ep;
}

static fi_addr_t address_of(struct fid_ep *ep)
{
	char name[64];
	size_t len = sizeof name;
	fi_addr_t to;

	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
	return to;
}

static void open_all(void)
{
	struct fi_info *hints = asked(FI_MSG | FI_RMA | FI_RMA_EVENT);
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT };

	hints->domain_attr->threading = FI_THREAD_SAFE;
	info = offered(hints);
	open_domain();
	OK(fi_cq_open(domain, &attr, &sent, NULL));
	OK(fi_cntr_open(domain, NULL, &accessed, NULL));
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, KEY, FI_RMA_EVENT, &mr, NULL));
	OK(fi_mr_bind(mr, &accessed->fid, FI_REMOTE_WRITE));
	from = opened(sent, NULL);
	self = address_of(from);
}

static void close_all(void)
{
	struct fid *all[] = { &from->fid, &mr->fid, &accessed->fid, &sent->fid,
			      &av->fid, &domain->fid, &fabric->fid };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		OK(fi_close(all[i]));
	fi_freeinfo(info);
}

static void note(long result)
{
	if (result > 0)
		atomic_fetch_add(&got, result);
	else
		WANT(result == -FI_EAGAIN || result == -FI_EINTR, 1);
}

static void *reader(void *unused)
{
	struct fi_cq_entry entries[2];

	while (!atomic_load(&stop))
		note(fi_cq_read(queue, entries, 2));
	return unused;
}

static void *sleeper(void *unused)
{
	struct fi_cq_entry entry;

	while (!atomic_load(&stop))
		note(fi_cq_sread(queue, &entry, 1, NULL, -1));
	return unused;
}

/* Reads a counter, and so turns what feeds it. */
static void *counter(void *cntr)
{
	while (!atomic_load(&stop))
		fi_cntr_read(cntr);
	return NULL;
}

static void *waiter(void *threshold)
{
	OK(fi_cntr_wait(count, (long)threshold, -1));
	return NULL;
}

static void ended(void)
{
	struct fi_cq_entry entry;
	long result;

	while ((result = fi_cq_read(sent, &entry, 1)) == -FI_EAGAIN)
		usleep(10);
	WANT(result, 1);
}

/* Messages and a write to each of these endpoints, that other threads find. */
static void talk(struct fid_ep **eps, int many)
{
	long before = atomic_load(&got);
	struct fi_cq_entry entry;

	for (int i = 0; i < many; i++) {
		fi_addr_t to = address_of(eps[i]);

		for (int k = 0; k < MESSAGES; k++) {
			OK(fi_recv(eps[i], &in[i * MESSAGES + k], 1, NULL, FI_ADDR_UNSPEC, NULL));
			while (fi_inject(from, out, 1, to) == -FI_EAGAIN)
				WANT(fi_cq_read(sent, &entry, 1), -FI_EAGAIN);
		}
		OK(fi_write(from, out, sizeof out, NULL, to, 0, KEY, NULL));
		ended();
	}
	/* The other threads alone turn what receives. */
	while (atomic_load(&got) < before + many * MESSAGES)
		usleep(50);
}

/* Another region is counted too, for a while, and an endpoint closed, while accesses are counted
 * by the thread that reads the counter. */
static void change(struct fid_ep *closed)
{
	static char other[64];
	struct fid_mr *region;

	for (int i = 0; i < WRITES; i++)
		OK(fi_write(from, out, sizeof out, NULL, self, 0, KEY, NULL));
	OK(fi_mr_reg(domain, other, sizeof other, FI_REMOTE_WRITE, 0, KEY + 1, FI_RMA_EVENT, &region, NULL));
	OK(fi_mr_bind(region, &accessed->fid, FI_REMOTE_WRITE));
	OK(fi_close(&closed->fid));
	OK(fi_close(&region->fid));
	for (int i = 0; i < WRITES; i++)
		ended();
}

/* Without `readers`, whoever sleeps for messages is woken by those who turn for the counters. */
static void round_of(int many, int readers)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_ep *eps[MOST];
	pthread_t threads[8];
	int started = 0;
	/* All talk, all but the first, and then another one in its place. */
	long total = (2 * many - 1 + 1) * MESSAGES;

	atomic_store(&stop, 0);
	atomic_store(&got, 0);
	OK(fi_cq_open(domain, &attr, &queue, NULL));
	OK(fi_cntr_open(domain, NULL, &count, NULL));
	for (int i = 0; i < many; i++)
		eps[i] = opened(queue, count);
	for (int i = 0; i < readers; i++)
		OK(pthread_create(&threads[started++], NULL, reader, NULL));
	OK(pthread_create(&threads[started++], NULL, sleeper, NULL));
	OK(pthread_create(&threads[started++], NULL, counter, count));
	OK(pthread_create(&threads[started++], NULL, counter, accessed));
	OK(pthread_create(&threads[started++], NULL, waiter, (void *)total));
	talk(eps, many);
	change(eps[0]);
	talk(eps + 1, many - 1);
	eps[0] = opened(queue, count);
	talk(eps, 1);
	for (int i = 0; i < many; i++)
		OK(fi_close(&eps[i]->fid));
	atomic_store(&stop, 1);
	OK(fi_cq_signal(queue));
	for (int i = 0; i < started; i++)
		OK(pthread_join(threads[i], NULL));
	WANT(atomic_load(&got), total);
	OK(fi_close(&queue->fid));
	OK(fi_close(&count->fid));
}

int main(void)
{
	alarm(LIMIT_S);
	open_all();
	for (int i = 0; i < ROUNDS; i++)
		round_of(i % 2 ? 1 : MOST, i / 2 % 3);
	close_all();
	return 0;
}
