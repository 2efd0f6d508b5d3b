/* What fi_getinfo claims is there, in every form that the manual pages name, and what is not
 * there is refused: formats of completions, levels of completion, fences, addresses as text.
 * Prints the first thing that is not as it must be. */
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <string.h>

#include "domain.h"

static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t self;
static char name[64], hello[8] = "hello", buffer[8];

static void want_refused(struct fi_info *hints)
{
	struct fi_info *found;

	WANT(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
	fi_freeinfo(hints);
}

static void what_is_not_there_is_not_offered(void)
{
	uint64_t caps[] = { FI_XPU_TRIGGER, FI_RMA_PMEM, FI_SHARED_AV, FI_NAMED_RX_CTX,
			    FI_HMEM, FI_MULTICAST, FI_VARIABLE_MSG };
	struct fi_info *hints;

	for (size_t i = 0; i < sizeof caps / sizeof *caps; i++)
		want_refused(asked(FI_MSG | caps[i]));
	hints = asked(FI_MSG);
	hints->tx_attr->comp_order = FI_ORDER_STRICT;
	want_refused(hints);
	hints = asked(FI_MSG);
	hints->ep_attr->type = FI_EP_MSG;
	want_refused(hints);
	hints = asked(FI_MSG);
	hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	want_refused(hints);
	hints = asked(FI_MSG);
	hints->ep_attr->rx_ctx_cnt = 2;
	want_refused(hints);
	hints = asked(FI_MSG);
	hints->tx_attr->inject_size = 1 << 30;
	want_refused(hints);
}

/* Who asks for little gets no more than that, besides what every endpoint has. */
static void capabilities_are_those_asked_for(void)
{
	struct fi_info *hints = asked(FI_TAGGED | FI_SEND), *found;

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	WANT(found->caps, FI_TAGGED | FI_SEND | FI_LOCAL_COMM | FI_REMOTE_COMM);
	WANT(found->tx_attr->caps & ~found->caps, 0);
	WANT(found->rx_attr->caps & ~found->caps, 0);
	fi_freeinfo(found);
	fi_freeinfo(hints);
}

static void open_with(enum fi_cq_format format, uint64_t bind)
{
	struct fi_cq_attr queue = { .format = format, .wait_obj = FI_WAIT_NONE };
	size_t len = sizeof name;

	open_domain();
	OK(fi_cq_open(domain, &queue, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | bind));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static void close_all(void)
{
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	close_domain();
}

/* Reads one completion of any format into the largest, the rest of which stays as it was. */
static struct fi_cq_tagged_entry next(void)
{
	struct fi_cq_tagged_entry entry;
	ssize_t n;

	memset(&entry, 0x55, sizeof entry);
	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	WANT(n, 1);
	return entry;
}

static void every_format_has_its_fields_and_no_more(void)
{
	const enum fi_cq_format formats[] = { FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG,
					      FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED };
	const uint64_t untouched = 0x5555555555555555;
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < 4; i++) {
		open_with(formats[i], FI_SELECTIVE_COMPLETION);
		struct iovec iov = { buffer, sizeof buffer };
		struct fi_msg_tagged receive = { .msg_iov = &iov, .iov_count = 1, .tag = 7,
						 .addr = FI_ADDR_UNSPEC, .context = &iov };
		OK(fi_trecvmsg(ep, &receive, FI_COMPLETION));
		/* Without the flag nobody hears of it. */
		OK(fi_tsenddata(ep, hello, 6, NULL, 0xabc, self, 7, NULL));
		entry = next();
		WANT(entry.op_context == &iov, 1);
		WANT(i < 1 ? entry.flags == untouched : entry.flags & FI_RECV, i < 1 ? 1 : FI_RECV);
		WANT(entry.len, i < 1 ? untouched : 6);
		WANT(entry.data, i < 2 ? untouched : 0xabc);
		WANT(entry.tag, i < 3 ? untouched : 7);
		WANT(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
		close_all();
	}
}

static void every_level_completes_and_fences_are_taken(void)
{
	const uint64_t levels[] = { FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
				    FI_MATCH_COMPLETE, FI_FENCE, FI_INJECT, FI_MORE };
	struct iovec iov = { hello, 6 };
	struct fi_msg_tagged message = { .msg_iov = &iov, .iov_count = 1, .addr = self, .tag = 1 };

	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
		memset(buffer, 0, sizeof buffer);
		OK(fi_trecv(ep, buffer, sizeof buffer, NULL, self, 1, 0, NULL));
		OK(fi_tsendmsg(ep, &message, levels[i] | FI_COMPLETION));
		WANT((next().flags | next().flags) & (FI_SEND | FI_RECV), FI_SEND | FI_RECV);
		OK(strcmp(buffer, "hello"));
	}
	/* Unmatched, a message is not match-complete: the receive must come first. */
	OK(fi_tsendmsg(ep, &message, FI_MATCH_COMPLETE | FI_COMPLETION));
	struct fi_cq_tagged_entry entry;
	for (int i = 0; i < 1000; i++)
		WANT(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
	OK(fi_trecv(ep, buffer, sizeof buffer, NULL, self, 1, 0, NULL));
	WANT((next().flags | next().flags) & (FI_SEND | FI_RECV), FI_SEND | FI_RECV);
}

static void what_was_not_offered_is_refused_when_used(void)
{
	struct iovec iov = { hello, 6 };
	struct fi_msg message = { .msg_iov = &iov, .iov_count = 1, .addr = self };
	struct fid_ep *none;

	WANT(fi_sendmsg(ep, &message, FI_TRIGGER), -FI_EBADFLAGS);
	WANT(fi_sendmsg(ep, &message, 1ULL << 62), -FI_EBADFLAGS);
	WANT(fi_scalable_ep(domain, info, &none, NULL) < 0, 1);
	WANT(fi_stx_context(domain, NULL, (struct fid_stx **)&none, NULL) < 0, 1);
	WANT(fi_srx_context(domain, NULL, &none, NULL) < 0, 1);
}

/* Without a context of its own, or with one that selective completions ignore, a failed
 * operation is told under the endpoint's (fi_endpoint(3)). */
static void failures_without_a_context_have_the_endpoints(void)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	struct fid_av *their_av;
	struct fid_cq *their_cq;
	struct fid_ep *gone;
	fi_addr_t there;
	char theirs[64];
	size_t len = sizeof theirs;
	ssize_t n;

	OK(fi_av_open(domain, &table, &their_av, NULL));
	OK(fi_cq_open(domain, &queue, &their_cq, NULL));
	OK(fi_endpoint(domain, info, &gone, NULL));
	OK(fi_ep_bind(gone, &their_av->fid, 0));
	OK(fi_ep_bind(gone, &their_cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(gone));
	OK(fi_getname(&gone->fid, theirs, &len));
	WANT(fi_av_insert(av, theirs, 1, &there, 0, NULL), 1);
	OK(fi_trecv(gone, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tinject(ep, hello, 6, there, 1));
	WANT(fi_cq_sread(their_cq, &entry, 1, NULL, -1), 1);
	OK(fi_close(&gone->fid));
	OK(fi_close(&their_cq->fid));
	OK(fi_close(&their_av->fid));
	ep->fid.context = theirs;
	for (int i = 0; i < 2; i++) {
		if (i == 0)
			OK(fi_tinject(ep, hello, 6, there, 1));
		else
			OK(fi_tsend(ep, hello, 6, NULL, there, 1, hello));
		while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
			;
		WANT(n, -FI_EAVAIL);
		WANT(fi_cq_readerr(cq, &error, 0), 1);
		WANT(error.err, FI_ECONNRESET);
		WANT(error.op_context == theirs, 1);
	}
}

static void an_address_is_text_of_known_length(void)
{
	char whole[128], part[8];
	size_t len = sizeof whole, needed = sizeof part;

	WANT(fi_av_straddr(av, name, whole, &len) == whole, 1);
	WANT(len, strlen(whole) + 1);
	WANT(fi_av_straddr(av, name, part, &needed) == part, 1);
	WANT(needed, len);
	WANT(strlen(part), sizeof part - 1);
	OK(strncmp(whole, part, sizeof part - 1));
}

/* Completions call an address what its program does (FI_AV_USER_ID, fi_av(3)). */
static void addresses_may_have_names_of_the_programs_own(void)
{
	struct fi_info *hints = asked(FI_TAGGED | FI_SOURCE | FI_AV_USER_ID);
	struct fi_cq_tagged_entry entry;
	fi_addr_t source, number = 0xabc;
	const int named = 1;
	ssize_t n;

	WANT(info->caps & FI_AV_USER_ID, 0);
	fi_freeinfo(info);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	WANT(info->caps & FI_AV_USER_ID, FI_AV_USER_ID);
	WANT(info->domain_attr->caps & FI_AV_USER_ID, FI_AV_USER_ID);
	open_with(FI_CQ_FORMAT_TAGGED, 0);
	for (int i = 0; i < 2; i++) {
		if (i == named)
			WANT(fi_av_insert(av, name, 1, &number, FI_AV_USER_ID, NULL), 1);
		WANT(i == named ? number : self, self);
		OK(fi_trecv(ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, 1, 0, buffer));
		OK(fi_tinject(ep, hello, 6, self, 1));
		while ((n = fi_cq_readfrom(cq, &entry, 1, &source)) == -FI_EAGAIN)
			;
		WANT(n, 1);
		WANT(source, i == named ? 0xabc : self);
	}
	close_all();
}

int main(void)
{
	struct fi_info *hints = asked(FI_TAGGED | FI_MSG | FI_DIRECTED_RECV | FI_FENCE);

	what_is_not_there_is_not_offered();
	capabilities_are_those_asked_for();
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	every_format_has_its_fields_and_no_more();
	open_with(FI_CQ_FORMAT_TAGGED, 0);
	every_level_completes_and_fences_are_taken();
	what_was_not_offered_is_refused_when_used();
	an_address_is_text_of_known_length();
	close_all();
	open_with(FI_CQ_FORMAT_TAGGED, FI_SELECTIVE_COMPLETION);
	failures_without_a_context_have_the_endpoints();
	close_all();
	addresses_may_have_names_of_the_programs_own();
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
