/* Many threads on the same two endpoints: messages, remote memory and atomics, objects that
 * come and go beside them, signals that interrupt every call, and children that are forked in
 * the midst of it. Prints the first thing that is not as it must be.
 * Arguments: rounds of each thread. */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "want.h"

enum { PAIRS = 2, CHILDREN = 4, LARGEST = 300000, KEY = 7, SLOT = 4096, TICK_US = 2000 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static int rounds = 100;

struct end {
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t other;
};

static struct end left, right;
static struct fid_mr *mr;
static uint64_t memory[SLOT];

/* An operation under way; whichever thread reads its completion says so here. */
struct op {
	struct fi_context2 context;
	atomic_int done;
};

static struct fi_info *negotiated(void)
{
	struct fi_info *hints = fi_allocinfo(), *found;

	hints->caps = FI_TAGGED | FI_MSG | FI_RMA | FI_ATOMIC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup("isthmus");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	WANT(found->domain_attr->threading, FI_THREAD_SAFE);
	fi_freeinfo(hints);
	return found;
}

static void open_end(struct end *end)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };

	OK(fi_av_open(domain, &table, &end->av, NULL));
	OK(fi_cq_open(domain, &queue, &end->cq, NULL));
	OK(fi_endpoint(domain, info, &end->ep, NULL));
	OK(fi_ep_bind(end->ep, &end->av->fid, 0));
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
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
	OK(fi_close(&end->cq->fid));
	OK(fi_close(&end->av->fid));
}

/* Reads what there is, sleeping a little where `wait` says so. */
static void progress(struct end *end, int wait)
{
	struct fi_cq_tagged_entry entries[4];
	ssize_t n = wait ? fi_cq_sread(end->cq, entries, 4, NULL, 5) : fi_cq_read(end->cq, entries, 4);

	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry error = { 0 };
		WANT(fi_cq_readerr(end->cq, &error, 0), 1);
		printf("an operation failed: %s\n", fi_strerror(error.err));
		exit(1);
	}
	if (n != -FI_EAGAIN && n != -FI_EINTR)
		WANT(n > 0, 1);
	for (ssize_t i = 0; i < n; i++)
		if (entries[i].op_context)
			atomic_store(&((struct op *)entries[i].op_context)->done, 1);
}

static void finish(struct end *end, struct op *op, int round)
{
	while (!atomic_load(&op->done))
		progress(end, round % 3 == 0);
}

/* Posts a call until there is room for it. */
#define POST(end, op, call)                                                             \
	do {                                                                            \
		long posted_;                                                           \
		atomic_store(&(op)->done, 0);                                           \
		while ((posted_ = (call)) == -FI_EAGAIN)                                \
			progress(end, 0);                                               \
		OK(posted_);                                                            \
	} while (0)

static size_t length(int round)
{
	const size_t sizes[] = { 8, 1000, 70000, LARGEST };
	return sizes[round % 4];
}

static void *sender(void *arg)
{
	long pair = (long)arg;
	char *data = malloc(LARGEST);
	struct op op;

	for (int round = 0; round < rounds; round++) {
		memset(data, (int)(round + pair), LARGEST);
		POST(&left, &op, fi_tsend(left.ep, data, length(round), NULL, left.other, pair, &op));
		finish(&left, &op, round);
	}
	free(data);
	return NULL;
}

static void *receiver(void *arg)
{
	long pair = (long)arg;
	unsigned char *data = malloc(LARGEST);
	struct op op;

	for (int round = 0; round < rounds; round++) {
		size_t last = length(round) - 1;
		memset(data, 0xee, LARGEST);
		POST(&right, &op, fi_trecv(right.ep, data, LARGEST, NULL, right.other, pair, 0, &op));
		finish(&right, &op, round);
		WANT(data[0], (unsigned char)(round + pair));
		WANT(data[last], (unsigned char)(round + pair));
		WANT(last + 1 == LARGEST || data[last + 1] == 0xee, 1);
	}
	free(data);
	return NULL;
}

/* Each pair has its part of the memory; the first word is everybody's sum. */
static void *accessor(void *arg)
{
	long pair = (long)arg;
	uint64_t out[16], in[16], one = 1, at = (1 + pair * 16) * sizeof *memory;
	struct op op;

	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < 16; i++)
			out[i] = (uint64_t)(round * 16 + i + pair);
		POST(&left, &op, fi_write(left.ep, out, sizeof out, NULL, left.other, at, KEY, &op));
		finish(&left, &op, round);
		POST(&left, &op, fi_read(left.ep, in, sizeof in, NULL, left.other, at, KEY, &op));
		finish(&left, &op, round);
		OK(memcmp(in, out, sizeof in));
		POST(&left, &op, fi_atomic(left.ep, &one, 1, NULL, left.other, 0, KEY, FI_UINT64, FI_SUM, &op));
		finish(&left, &op, round);
	}
	return NULL;
}

static void *opener(void *arg)
{
	struct end end;
	struct op sent, received;
	char text[8] = "hello", buffer[8];

	(void)arg;
	for (int round = 0; round < rounds / 4; round++) {
		open_end(&end);
		introduce(&end, &end);
		POST(&end, &received, fi_trecv(end.ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, 1, 0, &received));
		POST(&end, &sent, fi_tsend(end.ep, text, sizeof text, NULL, end.other, 1, &sent));
		finish(&end, &sent, round);
		finish(&end, &received, round);
		OK(strcmp(buffer, "hello"));
		close_end(&end);
	}
	return NULL;
}

static atomic_long ticks;

static void tick(int number)
{
	(void)number;
	atomic_fetch_add(&ticks, 1);
}

static void start_signals(void)
{
	/* Without SA_RESTART: whatever sleeps, is interrupted. */
	struct sigaction action = { .sa_handler = tick };
	struct itimerval each = { { 0, TICK_US }, { 0, TICK_US } };

	OK(sigaction(SIGALRM, &action, NULL));
	OK(setitimer(ITIMER_REAL, &each, NULL));
}

static void forked(void)
{
	struct fi_cq_tagged_entry entry;
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		_exit(fi_cq_read(left.cq, &entry, 1) == -FI_EOPBADSTATE ? 0 : 1);
	while (waitpid(child, &status, 0) < 0)
		;
	OK(status);
}

int main(int count, char **words)
{
	void *(*const bodies[])(void *) = { sender, receiver, accessor };
	pthread_t threads[3 * PAIRS + 1];
	int started = 0;

	if (count > 1)
		rounds = atoi(words[1]);
	info = negotiated();
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	open_end(&left);
	open_end(&right);
	introduce(&left, &right);
	introduce(&right, &left);
	start_signals();
	for (long pair = 0; pair < PAIRS; pair++)
		for (int body = 0; body < 3; body++)
			OK(pthread_create(&threads[started++], NULL, bodies[body], (void *)pair));
	OK(pthread_create(&threads[started++], NULL, opener, NULL));
	for (int i = 0; i < CHILDREN; i++)
		forked();
	for (int i = 0; i < started; i++)
		OK(pthread_join(threads[i], NULL));
	WANT(memory[0], PAIRS * rounds);
	while (!atomic_load(&ticks))
		usleep(TICK_US);
	close_end(&left);
	close_end(&right);
	OK(fi_close(&mr->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}
