/* The provider in a process that is not its own: objects come and go without leaving
 * anything, descriptors run out, the process ends in the midst of it. Prints the first thing
 * that is not as it must be. Arguments: which of these; how many openings. */
#include <dirent.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "want.h"

enum { CYCLES = 10000, WARM = 1000, GROWTH_KB = 2048, BIG = 64 << 20, FILES = 64 };

struct objects {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
};

static struct fi_info *negotiated(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;

	hints->caps = FI_TAGGED | FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("isthmus");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

/* Closes what there is, in libfabric's order; all of it must be closable. */
static void close_all(struct objects *o)
{
	struct fid *fids[] = { o->ep ? &o->ep->fid : NULL, o->cq ? &o->cq->fid : NULL,
			       o->av ? &o->av->fid : NULL, o->domain ? &o->domain->fid : NULL,
			       o->fabric ? &o->fabric->fid : NULL };

	for (size_t i = 0; i < sizeof fids / sizeof *fids; i++)
		if (fids[i])
			OK(fi_close(fids[i]));
	memset(o, 0, sizeof *o);
}

/* Opens everything. Returns 0, or the first error, with what was opened closed again. */
static int open_all(struct fi_info *info, struct objects *o)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	int error;

	memset(o, 0, sizeof *o);
	if ((error = fi_fabric(info->fabric_attr, &o->fabric, NULL)) ||
	    (error = fi_domain(o->fabric, info, &o->domain, NULL)) ||
	    (error = fi_av_open(o->domain, &table, &o->av, NULL)) ||
	    (error = fi_cq_open(o->domain, &queue, &o->cq, NULL)) ||
	    (error = fi_endpoint(o->domain, info, &o->ep, NULL)) ||
	    (error = fi_ep_bind(o->ep, &o->av->fid, 0)) ||
	    (error = fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV)) ||
	    (error = fi_enable(o->ep)))
		close_all(o);
	return error;
}

static fi_addr_t peer(struct objects *from, struct objects *to)
{
	char name[64];
	size_t len = sizeof name;
	fi_addr_t found;

	OK(fi_getname(&to->ep->fid, name, &len));
	WANT(fi_av_insert(from->av, name, 1, &found, 0, NULL), 1);
	return found;
}

static void completion(struct objects *o)
{
	struct fi_cq_tagged_entry entry;

	WANT(fi_cq_sread(o->cq, &entry, 1, NULL, 10000), 1);
}

/* A message from an endpoint to itself: proof that it lives. */
static void one_message(struct objects *o)
{
	char text[8] = "hello", buffer[8] = "";

	OK(fi_trecv(o->ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tinject(o->ep, text, sizeof text, peer(o, o), 1));
	completion(o);
	OK(strcmp(buffer, "hello"));
}

static long resident_kb(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	WANT(fscanf(file, "%*d %ld", &pages), 1);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int entries_of(const char *folder)
{
	int count = 0;
	DIR *dir = opendir(folder);

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* The I/O thread may be the last to let go of an endpoint, a moment after it was closed. */
static void moment(void)
{
	struct timespec moment = {.tv_nsec = 10000000};

	nanosleep(&moment, NULL);
}

static int descriptors_at_rest(void)
{
	int least = entries_of("/proc/self/fd");

	for (int i = 0; i < 20; i++) {
		moment();
		int now = entries_of("/proc/self/fd");
		least = now < least ? now : least;
	}
	return least;
}

static void want_descriptors(int files)
{
	for (int i = 0; i < 1000 && entries_of("/proc/self/fd") != files; i++)
		moment();
	WANT(entries_of("/proc/self/fd"), files);
}

/* Memory is looked at where there are as many openings as that takes; who asks for fewer has
 * a tool that looks itself. */
static void cycles(int count)
{
	long before = 0, grown;
	int files = 0;
	struct objects o;

	for (int i = 0; i < count; i++) {
		struct fi_info *info = negotiated();
		OK(open_all(info, &o));
		if (i % 100 == 0)
			one_message(&o);
		close_all(&o);
		fi_freeinfo(info);
		if (i == WARM) {
			before = resident_kb();
			files = descriptors_at_rest();
		}
	}
	if (count < CYCLES)
		return;
	grown = resident_kb() - before;
	if (grown > GROWTH_KB) {
		printf("%ld KiB more after %d cycles\n", grown, count - WARM);
		exit(1);
	}
	want_descriptors(files);
}

/* With any number of descriptors left, from none up, opening works or gives an error and
 * leaves nothing; with enough again all is as before. */
static void descriptors(void)
{
	struct fi_info *info = negotiated();
	struct rlimit usual, few;
	struct objects o;
	int refused = 0, free_ones = 0, error;

	OK(open_all(info, &o));
	one_message(&o);
	close_all(&o);
	int files = descriptors_at_rest();
	OK(getrlimit(RLIMIT_NOFILE, &usual));
	do {
		few = usual;
		few.rlim_cur = files - 3 + free_ones++;
		OK(setrlimit(RLIMIT_NOFILE, &few));
		error = open_all(info, &o);
		if (error) {
			WANT(error, -FI_EMFILE);
			refused++;
		} else {
			close_all(&o);
		}
		OK(setrlimit(RLIMIT_NOFILE, &usual));
	} while (error && free_ones < FILES);
	OK(error);
	WANT(refused > 0, 1);
	want_descriptors(files);
	OK(open_all(info, &o));
	one_message(&o);
	close_all(&o);
	fi_freeinfo(info);
}

/* Ends as `how` says while a message is on its way that nobody takes, and while another
 * thread of the library is at work on it. */
static void leave(void (*how)(int))
{
	struct fi_info *info = negotiated();
	struct fi_cq_tagged_entry entry;
	struct objects from, to;
	/* As a program holds them to its end. */
	static char *big, *room, first[8];
	fi_addr_t there;

	big = calloc(1, BIG);
	room = malloc(BIG / 2);
	OK(open_all(info, &from));
	OK(open_all(info, &to));
	fi_freeinfo(info);
	there = peer(&from, &to);
	OK(fi_trecv(to.ep, first, sizeof first, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tinject(from.ep, big, sizeof first, there, 1));
	completion(&to);
	OK(fi_trecv(to.ep, room, BIG / 2, NULL, FI_ADDR_UNSPEC, 2, 0, NULL));
	OK(fi_tsend(from.ep, big, BIG, NULL, there, 2, NULL));
	OK(fi_tsend(from.ep, big, BIG, NULL, there, 3, NULL));
	WANT(fi_cq_read(from.cq, &entry, 1), -FI_EAGAIN);
	how(0);
}

int main(int count, char **words)
{
	const char *wanted = count > 1 ? words[1] : "";

	if (!strcmp(wanted, "cycles"))
		cycles(count > 2 ? atoi(words[2]) : CYCLES);
	else if (!strcmp(wanted, "descriptors"))
		descriptors();
	else if (!strcmp(wanted, "exit"))
		leave(exit);
	else if (!strcmp(wanted, "_exit"))
		leave(_exit);
	else
		return 2;
	return 0;
}
