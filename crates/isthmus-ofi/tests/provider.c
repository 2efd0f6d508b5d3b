/* Every kind of object and operation of the provider, through libfabric, against one
 * endpoint that talks to itself. Prints the first thing that is not as it must be. */
#include <netinet/in.h>
#include <poll.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "domain.h"

#define CONTEXT(n) ((void *)(n))

static struct fid_cq *cq;
static struct fid_cntr *sent, *written;
static struct fid_ep *ep;
static fi_addr_t self;
static char hello[64] = "hello", buffer[64];

static void open_all(void)
{
	struct fi_av_attr named = { .name = "shared" };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fi_cntr_attr counter = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_av *none;
	char name[64];
	size_t len = 8;

	open_domain();
	WANT(fi_av_open(domain, &named, &none, NULL), -FI_ENOSYS);
	OK(fi_cq_open(domain, &queue, &cq, CONTEXT(77)));
	OK(fi_cntr_open(domain, &counter, &sent, NULL));
	OK(fi_cntr_open(domain, &counter, &written, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	WANT(fi_enable(ep), -FI_ENOAV);
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &sent->fid, FI_SEND | FI_WRITE | FI_READ));
	OK(fi_ep_bind(ep, &written->fid, FI_REMOTE_WRITE));
	OK(fi_enable(ep));
	WANT(fi_getname(&ep->fid, name, &len), -FI_ETOOSMALL);
	WANT(len, 64);
	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static void close_all(void)
{
	WANT(fi_close(&cq->fid), -FI_EBUSY);
	WANT(fi_close(&domain->fid), -FI_EBUSY);
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&sent->fid));
	OK(fi_close(&written->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
}

/* Reads one entry. */
static struct fi_cq_tagged_entry next(void)
{
	struct fi_cq_tagged_entry entry;
	ssize_t n;

	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	WANT(n, 1);
	return entry;
}

/* Reads one failure. */
static struct fi_cq_err_entry next_error(int errno_wanted)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t n;

	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	WANT(n, -FI_EAVAIL);
	WANT(fi_cq_readerr(cq, &error, 0), 1);
	WANT(error.err, errno_wanted);
	return error;
}

static void a_descriptor_wakes_the_sleeper(void)
{
	struct fi_cq_tagged_entry entries[4];
	struct fid *fids[1] = { &cq->fid };
	struct pollfd wait = { .events = POLLIN };
	fi_addr_t sources[4];
	int seen = 0;

	OK(fi_control(&cq->fid, FI_GETWAIT, &wait.fd));
	WANT(fi_cq_sread(cq, entries, 1, NULL, 20), -FI_EAGAIN);
	OK(fi_trywait(fabric, fids, 1));
	WANT(poll(&wait, 1, 20), 0);
	OK(fi_trecv(ep, buffer, sizeof buffer, NULL, self, 5, 0, CONTEXT(1)));
	OK(fi_tsend(ep, hello, 6, NULL, self, 5, CONTEXT(2)));
	while (seen < 2) {
		if (fi_trywait(fabric, fids, 1) == 0)
			WANT(poll(&wait, 1, 5000), 1);
		ssize_t n = fi_cq_readfrom(cq, entries, 4, sources);
		for (ssize_t i = 0; i < n; i++, seen++) {
			if (!(entries[i].flags & FI_RECV))
				continue;
			WANT(sources[i], self);
			WANT(entries[i].tag, 5);
			WANT(entries[i].len, 6);
		}
	}
	OK(strcmp(buffer, "hello"));
	OK(fi_cntr_wait(sent, 1, 1000));
}

static void failures_have_errno_and_text(void)
{
	struct fi_msg_tagged search = { .addr = FI_ADDR_UNSPEC, .tag = 9 };
	struct fi_cq_err_entry error;
	const char *text;

	OK(fi_trecv(ep, buffer, 2, NULL, FI_ADDR_UNSPEC, 6, 0, CONTEXT(3)));
	OK(fi_tinject(ep, hello, 6, self, 6));
	error = next_error(FI_ETRUNC);
	WANT(error.olen, 4);
	text = fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0);
	WANT(strstr(text, "post a larger receive") != NULL, 1);
	OK(fi_trecvmsg(ep, &search, FI_PEEK));
	next_error(FI_ENOMSG);
	OK(fi_trecv(ep, buffer, 2, NULL, FI_ADDR_UNSPEC, 6, 0, CONTEXT(5)));
	OK(fi_cancel(&ep->fid, CONTEXT(5)));
	next_error(FI_ECANCELED);
	WANT(fi_cancel(&ep->fid, CONTEXT(5)), -FI_ENOENT);
}

static void one_buffer_takes_many_messages(void)
{
	char big[256];
	struct iovec iov = { big, sizeof big }, pieces[2] = { { big, 100 }, { big + 100, 100 } };
	struct fi_msg many = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC };
	struct fi_msg apart = { .msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC };
	size_t least = 100;
	int messages = 0, released = 0;

	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
	WANT(fi_recvmsg(ep, &apart, FI_MULTI_RECV), -FI_EINVAL);
	OK(fi_recvmsg(ep, &many, FI_MULTI_RECV | FI_TRANSMIT_COMPLETE));
	for (int i = 0; i < 3; i++)
		OK(fi_inject(ep, hello, 60, self));
	while (messages < 3 || !released) {
		struct fi_cq_tagged_entry entry = next();
		messages += (entry.flags & FI_RECV) != 0;
		released += (entry.flags & FI_MULTI_RECV) != 0;
	}
	WANT(released, 1);
}

static void memory_is_read_written_and_changed(void)
{
	uint64_t memory[8] = { 0 }, seven = 7, fourteen = 14, result = 0;
	struct fid_mr *mr, *none;
	int told = 0;

	OK(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 42, 0, &mr, NULL));
	WANT(fi_mr_key(mr), 42);
	WANT(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ, 0, 42, 0, &none, NULL), -FI_ENOKEY);
	OK(fi_write(ep, &seven, 8, NULL, self, 8, 42, NULL));
	WANT(next().flags, FI_RMA | FI_WRITE);
	WANT(memory[1], 7);
	OK(fi_cntr_wait(written, 1, 1000));
	OK(fi_read(ep, &result, 8, NULL, self, 8, 42, NULL));
	WANT(next().flags, FI_RMA | FI_READ);
	WANT(result, 7);
	OK(fi_fetch_atomic(ep, &seven, 1, NULL, &result, NULL, self, 8, 42, FI_UINT64, FI_SUM, NULL));
	next();
	WANT(memory[1], 14);
	OK(fi_compare_atomic(ep, &seven, 1, NULL, &fourteen, NULL, &result, NULL, self, 8, 42,
			     FI_UINT64, FI_CSWAP, NULL));
	next();
	WANT(memory[1], 7);
	OK(fi_write(ep, &seven, 8, NULL, self, 999, 42, NULL));
	next_error(FI_EACCES);
	OK(fi_writedata(ep, &seven, 8, NULL, 0xabc, self, 0, 42, NULL));
	for (int i = 0; i < 2; i++) {
		struct fi_cq_tagged_entry entry = next();
		told += (entry.flags & FI_REMOTE_WRITE) && entry.data == 0xabc && entry.buf == memory;
	}
	WANT(told, 1);
	/* Where the data landed, not where the region begins. */
	OK(fi_writedata(ep, &seven, 8, NULL, 0xdef, self, 24, 42, NULL));
	for (int i = 0; i < 2; i++) {
		struct fi_cq_tagged_entry entry = next();
		told += (entry.flags & FI_REMOTE_WRITE) && entry.data == 0xdef && entry.buf == &memory[3];
	}
	WANT(told, 2);
	WANT(memory[3], 7);
	OK(fi_close(&mr->fid));
}

static void aliases_and_poll_sets_work(void)
{
	struct fi_poll_attr attr = { 0 };
	struct fid_poll *set;
	struct fid_ep *alias = NULL;
	void *contexts[2];
	int n;

	OK(fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_COMPLETION));
	OK(fi_tinject(alias, hello, 1, self, 7));
	OK(fi_close(&alias->fid));
	OK(fi_trecv(ep, buffer, 2, NULL, FI_ADDR_UNSPEC, 7, 0, NULL));
	next();
	OK(fi_poll_open(domain, &attr, &set));
	OK(fi_poll_add(set, &cq->fid, 0));
	WANT(fi_poll(set, contexts, 2), 0);
	OK(fi_tinject(ep, hello, 1, self, 8));
	OK(fi_trecv(ep, buffer, 2, NULL, FI_ADDR_UNSPEC, 8, 0, NULL));
	while ((n = fi_poll(set, contexts, 2)) == 0)
		;
	WANT(n, 1);
	WANT(contexts[0], 77);
	OK(fi_close(&set->fid));
	next();
}

/* One sleep for a queue and a counter of another endpoint. */
static void a_wait_set_wakes_for_each_member(void)
{
	struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_SET };
	struct fi_cntr_attr counter = { .wait_obj = FI_WAIT_SET };
	struct fi_cq_tagged_entry entry;
	struct fid_wait *set;
	struct fid *fids[1];
	struct fid_cq *their_cq;
	struct fid_cntr *came;
	struct fid_ep *theirs;
	fi_addr_t there;
	char name[64], text[8];
	size_t len = sizeof name;

	WANT(fi_cq_open(domain, &queue, &their_cq, NULL), -FI_EINVAL);
	OK(fi_wait_open(fabric, &attr, &set));
	queue.wait_set = counter.wait_set = set;
	OK(fi_cq_open(domain, &queue, &their_cq, NULL));
	OK(fi_cntr_open(domain, &counter, &came, NULL));
	OK(fi_endpoint(domain, info, &theirs, NULL));
	OK(fi_ep_bind(theirs, &av->fid, 0));
	OK(fi_ep_bind(theirs, &their_cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(theirs, &came->fid, FI_RECV));
	OK(fi_enable(theirs));
	OK(fi_getname(&theirs->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &there, 0, NULL), 1);
	WANT(fi_wait(set, 10), -FI_ETIMEDOUT);
	/* Only the counter hears of this one, */
	OK(fi_trecv(theirs, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tinject(ep, hello, 6, there, 1));
	OK(fi_wait(set, -1));
	WANT(fi_cntr_read(came), 1);
	WANT(fi_wait(set, 10), -FI_ETIMEDOUT);
	/* and of this one the queue too. */
	struct iovec iov = { text, sizeof text };
	struct fi_msg_tagged receive = { .msg_iov = &iov, .iov_count = 1, .tag = 2, .addr = FI_ADDR_UNSPEC };
	OK(fi_trecvmsg(theirs, &receive, FI_COMPLETION));
	OK(fi_tinject(ep, hello, 6, there, 2));
	while (fi_cntr_read(came) < 2)
		OK(fi_wait(set, -1));
	fids[0] = &set->fid;
	WANT(fi_trywait(fabric, fids, 1), -FI_EAGAIN);
	WANT(fi_cq_read(their_cq, &entry, 1), 1);
	OK(fi_trywait(fabric, fids, 1));
	WANT(fi_close(&set->fid), -FI_EBUSY);
	WANT(fi_av_remove(av, &there, 1, 0), 0);
	OK(fi_close(&theirs->fid));
	OK(fi_close(&their_cq->fid));
	OK(fi_close(&came->fid));
	OK(fi_close(&set->fid));
}

static void a_forked_child_touches_nothing(void)
{
	struct fi_cq_tagged_entry entry;
	int status;
	pid_t child = fork();

	if (child == 0) {
		WANT(fi_cq_read(cq, &entry, 1), -FI_EOPBADSTATE);
		WANT(fi_tsend(ep, hello, 6, NULL, self, 5, NULL), -FI_EOPBADSTATE);
		OK(fi_close(&ep->fid));
		_exit(0);
	}
	waitpid(child, &status, 0);
	OK(status);
	OK(fi_trecv(ep, buffer, sizeof buffer, NULL, self, 5, 0, NULL));
	OK(fi_tinject(ep, hello, 6, self, 5));
	WANT(fi_cq_sread(cq, &entry, 1, NULL, -1), 1);
}

/* Insertions of such a vector return nothing; the event queue tells how they went. */
static void insertions_may_end_with_an_event(void)
{
	struct fi_av_attr told = { .type = FI_AV_TABLE, .flags = FI_EVENT };
	struct fi_eq_attr queue = { .wait_obj = FI_WAIT_FD };
	struct fi_eq_err_entry failure = { 0 };
	struct fi_eq_entry entry;
	struct fid_av *vector;
	struct fid_eq *eq;
	fi_addr_t numbers[2] = { 7, 7 };
	char names[128] = { 0 };
	size_t len = 64;
	uint32_t event;
	int context;

	OK(fi_eq_open(fabric, &queue, &eq, NULL));
	OK(fi_av_open(domain, &told, &vector, NULL));
	OK(fi_getname(&ep->fid, names, &len));
	WANT(fi_av_insert(vector, names, 1, numbers, 0, &context), -FI_ENOEQ);
	OK(fi_av_bind(vector, &eq->fid, 0));
	WANT(fi_close(&eq->fid), -FI_EBUSY);
	OK(fi_av_insert(vector, names, 2, numbers, 0, &context));
	WANT(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0), -FI_EAVAIL);
	WANT(fi_eq_readerr(eq, &failure, 0), sizeof failure);
	WANT(failure.data == 1 && failure.context == &context && failure.err > 0, 1);
	WANT(fi_eq_readerr(eq, &failure, 0), -FI_EAGAIN);
	WANT(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0), sizeof entry);
	WANT(event, FI_AV_COMPLETE);
	WANT(entry.fid == &vector->fid && entry.context == &context && entry.data == 1, 1);
	WANT(numbers[0] == 0 && numbers[1] == FI_ADDR_NOTAVAIL, 1);
	OK(fi_close(&vector->fid));
	OK(fi_close(&eq->fid));
}

/* Addresses of one format are of one length, whatever is in the first of them: behind the last is no memory. */
static void nothing_is_read_behind_the_last_address(struct fid_av *vector)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sockaddr_in *last = (struct sockaddr_in *)(pages + page);
	fi_addr_t numbers[3] = { 7, 7, 7 };
	int errors[3] = { 7, 7, 7 };
	char text[64];
	size_t len = sizeof text;

	OK(mprotect(last, page, PROT_NONE));
	for (int i = 1; i <= 2; i++)
		last[-i] = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(4000 + i),
						 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	WANT(fi_av_insert(vector, last - 3, 3, numbers, FI_SYNC_ERR, errors), 2);
	WANT(errors[0] > 0 && errors[1] == 0 && errors[2] == 0, 1);
	WANT(numbers[0], FI_ADDR_NOTAVAIL);
	WANT(fi_av_straddr(vector, last - 1, text, &len) == text, 1);
	last[-1].sin_family = 0;
	WANT(fi_av_straddr(vector, last - 1, text, &len) == NULL, 1);
	munmap(pages, 2 * page);
}

/* Who asks for socket addresses gets them everywhere, and may send to them. */
static void socket_addresses_work(void)
{
	struct fi_info *hints = fi_dupinfo(info), *found;
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_cq_tagged_entry entry;
	struct sockaddr_in name, known;
	struct fid_domain *own;
	struct fid_av *vector;
	struct fid_cq *done;
	struct fid_ep *end;
	size_t len = sizeof name;
	fi_addr_t me;

	hints->addr_format = FI_SOCKADDR;
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &found));
	WANT(found->addr_format, FI_SOCKADDR_IN);
	WANT(found->src_addrlen, sizeof name);
	OK(fi_domain(fabric, found, &own, NULL));
	OK(fi_av_open(own, &table, &vector, NULL));
	OK(fi_cq_open(own, &queue, &done, NULL));
	OK(fi_endpoint(own, found, &end, NULL));
	OK(fi_ep_bind(end, &vector->fid, 0));
	OK(fi_ep_bind(end, &done->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(end));
	OK(fi_getname(&end->fid, &name, &len));
	WANT(len, sizeof name);
	WANT(name.sin_family, AF_INET);
	WANT(ntohl(name.sin_addr.s_addr), INADDR_LOOPBACK);
	WANT(fi_av_insert(vector, &name, 1, &me, 0, NULL), 1);
	OK(fi_av_lookup(vector, me, &known, &len));
	WANT(memcmp(&name, &known, sizeof name), 0);
	OK(fi_trecv(end, buffer, sizeof buffer, NULL, me, 5, 0, NULL));
	OK(fi_tinject(end, hello, 6, me, 5));
	while (fi_cq_read(done, &entry, 1) == -FI_EAGAIN)
		;
	WANT(strcmp(buffer, hello), 0);
	nothing_is_read_behind_the_last_address(vector);
	OK(fi_close(&end->fid));
	OK(fi_close(&done->fid));
	OK(fi_close(&vector->fid));
	OK(fi_close(&own->fid));
	fi_freeinfo(found);
	fi_freeinfo(hints);
}

int main(void)
{
	info = offered(asked(FI_TAGGED | FI_MSG | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV |
			     FI_MULTI_RECV));
	for (int i = 0; i < 5; i++) {
		open_all();
		a_descriptor_wakes_the_sleeper();
		failures_have_errno_and_text();
		one_buffer_takes_many_messages();
		memory_is_read_written_and_changed();
		aliases_and_poll_sets_work();
		a_wait_set_wakes_for_each_member();
		insertions_may_end_with_an_event();
		socket_addresses_work();
		a_forked_child_touches_nothing();
		close_all();
	}
	fi_freeinfo(info);
	return 0;
}
