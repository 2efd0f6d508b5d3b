/* Closing while a message is under way to a process that stopped reading: what was lent is the
 * program's again once fi_close returns, though it returns by time-out.
 *
 *     lenders tcp|udp|memory
 *
 * The buffer is freed then, and the other process goes on. Whoever touches the buffer after that is
 * found by AddressSanitizer or valgrind; where there is neither, the memory is gone and it crashes.
 * The other process finds no byte that was not sent. Ends by SIGALRM if something hangs. */
#include <errno.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "domain.h"

enum { LIMIT_S = 100, NAME = 64 };
#define LONG ((size_t)64 << 20)

static struct fid_cq *cq;
static struct fid_ep *ep;

static void open_endpoint(const char *by)
{
	struct fi_info *hints;
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT };
	int memory = strcmp(by, "memory") == 0;

	setenv("FI_ISTHMUS_INTERFACE", "127.0.0.1", 1);
	setenv("FI_ISTHMUS_LINGER", "100ms", 1);
	setenv("FI_ISTHMUS_FABRIC", memory ? "memory" : "off", 1);
	/* Within a host UDP is for tests only. */
	setenv("FI_ISTHMUS_TRANSPORT", memory ? "auto" : strcmp(by, "udp") ? by : "udp-everywhere", 1);
	hints = asked(FI_MSG);
	info = offered(hints);
	open_domain();
	OK(fi_cq_open(domain, &attr, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
}

static void close_endpoint(void)
{
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	close_domain();
	fi_freeinfo(info);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Whether an operation has ended within so long, well or not. */
static int ended(double seconds)
{
	double until = now_s() + seconds;
	struct fi_cq_entry entry;

	do {
		if (fi_cq_read(cq, &entry, 1) != -FI_EAGAIN)
			return 1;
	} while (now_s() < until);
	return 0;
}

static char sent(size_t i)
{
	return (char)(1 + i % 251);
}

/* The process that stops reading: it gets a short message, and some of a long one. */
static void receive(const char *by, int to_sender, int from_sender)
{
	static char first[8];
	char name[NAME], *got = calloc(LONG, 1), go;
	size_t len = sizeof name, wrong = 0;

	open_endpoint(by);
	OK(fi_recv(ep, first, sizeof first, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_recv(ep, got, LONG, NULL, FI_ADDR_UNSPEC, NULL));
	OK(fi_getname(&ep->fid, name, &len));
	WANT(write(to_sender, name, NAME), NAME);
	WANT(ended(LIMIT_S), 1);
	WANT(read(from_sender, &go, 1), 1);
	/* By now the sender is gone. */
	ended(2);
	for (size_t i = 0; i < LONG; i++)
		wrong += got[i] && got[i] != sent(i);
	WANT(wrong, 0);
	/* The receive may be under way, and what is in it is not looked at again. */
	fi_close(&ep->fid);
	_exit(0);
}

int main(int count, char **words)
{
	const char *by = count > 1 ? words[1] : "tcp";
	int up[2], down[2], status;
	char name[NAME], *lent = malloc(LONG), go = 1;
	static char first[8] = "first";
	fi_addr_t to;
	pid_t child;
	double start;

	alarm(LIMIT_S);
	OK(pipe(up));
	OK(pipe(down));
	child = fork();
	if (child == 0) {
		alarm(LIMIT_S);
		free(lent);
		receive(by, up[1], down[0]);
	}
	open_endpoint(by);
	WANT(read(up[0], name, NAME), NAME);
	WANT(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
	OK(fi_send(ep, first, sizeof first, NULL, to, NULL));
	WANT(ended(LIMIT_S), 1);
	/* It has told its program. */
	usleep(300000);
	OK(kill(child, SIGSTOP));
	for (size_t i = 0; i < LONG; i++)
		lent[i] = sent(i);
	OK(fi_send(ep, lent, LONG, NULL, to, NULL));
	WANT(ended(0.3), 0);
	start = now_s();
	close_endpoint();
	WANT(now_s() - start < 20, 1);
	memset(lent, 0, LONG);
	free(lent);
	OK(kill(child, SIGCONT));
	sleep(1);
	WANT(write(down[1], &go, 1), 1);
	WANT(waitpid(child, &status, 0), child);
	WANT(status, 0);
	return 0;
}
