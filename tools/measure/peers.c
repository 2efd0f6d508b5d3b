// Round trips of 8 bytes between one endpoint and each of 64 in another process, which polls the queues of
// all: prints "peers-64 VALUE", microseconds a round trip, median of 20 batches.
//   FI_PROVIDER=... peers [PROVIDER]      PROVIDER as fi_getinfo(3) takes it, such as tcp;ofi_rxm
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "median.h"

enum { PEERS = 64, BATCHES = 20, TURNS = 20, ADDRESS = 256 };

struct end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    char address[ADDRESS];
    uint64_t in, out;
};

// The other process has all that it wanted.
static volatile sig_atomic_t done;

static void end_turns(int signal)
{
    (void)signal;
    done = 1;
}

static void check(long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "peers: %s: %s\n", what, fi_strerror((int)-result));
        exit(1);
    }
}

static struct fi_info *choose(const char *provider)
{
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = provider ? strdup(provider) : NULL;
    check(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    return info;
}

static void open_end(struct end *end, struct fi_info *info, struct fid_domain *domain)
{
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .size = 256};
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = PEERS};
    size_t length = ADDRESS;
    check(fi_endpoint(domain, info, &end->ep, NULL), "fi_endpoint");
    check(fi_cq_open(domain, &cq, &end->cq, NULL), "fi_cq_open");
    check(fi_av_open(domain, &av, &end->av, NULL), "fi_av_open");
    check(fi_ep_bind(end->ep, &end->cq->fid, FI_SEND | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(end->ep, &end->av->fid, 0), "fi_ep_bind");
    check(fi_enable(end->ep), "fi_enable");
    check(fi_getname(&end->ep->fid, end->address, &length), "fi_getname");
}

// Some providers leave what they share in the file system to who does not close.
static void close_end(struct end *end)
{
    fi_close(&end->ep->fid);
    fi_close(&end->cq->fid);
    fi_close(&end->av->fid);
}

// Whether a receive has completed.
static int arrived(struct end *end)
{
    struct fi_cq_tagged_entry entry;
    ssize_t count = fi_cq_read(end->cq, &entry, 1);
    if (count == -FI_EAGAIN)
        return 0;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(end->cq, &error, 0);
        check(-error.err, "an operation");
    }
    check(count, "fi_cq_read");
    return (entry.flags & FI_RECV) != 0;
}

static void receive(struct end *end)
{
    ssize_t result;
    while ((result = fi_trecv(end->ep, &end->in, 8, NULL, FI_ADDR_UNSPEC, 7, 0, end)) == -FI_EAGAIN)
        arrived(end);
    check(result, "fi_trecv");
}

static void inject(struct end *end, fi_addr_t to)
{
    ssize_t result;
    while ((result = fi_tinject(end->ep, &end->out, 8, to, 7)) == -FI_EAGAIN)
        (void)!fi_cq_read(end->cq, NULL, 0);
    check(result, "fi_tinject");
}

static void answer(struct fi_info *info, struct fid_domain *domain, int in, int out)
{
    static struct end ends[PEERS];
    char far[ADDRESS];
    fi_addr_t to[PEERS];
    for (int i = 0; i < PEERS; i++) {
        open_end(&ends[i], info, domain);
        check(write(out, ends[i].address, ADDRESS), "write");
    }
    check(read(in, far, ADDRESS) == ADDRESS ? 0 : -FI_EIO, "the other end's address");
    for (int i = 0; i < PEERS; i++) {
        check(fi_av_insert(ends[i].av, far, 1, &to[i], 0, NULL), "fi_av_insert");
        receive(&ends[i]);
    }
    check(write(out, "ready", 5), "write");
    while (!done)
        for (int i = 0; i < PEERS; i++)
            if (arrived(&ends[i])) {
                receive(&ends[i]);
                inject(&ends[i], to[i]);
            }
    for (int i = 0; i < PEERS; i++)
        close_end(&ends[i]);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void ask(struct fi_info *info, struct fid_domain *domain, int in, int out)
{
    static struct end end;
    char far[PEERS][ADDRESS], ready[5];
    fi_addr_t to[PEERS];
    double batches[BATCHES];
    open_end(&end, info, domain);
    for (int i = 0; i < PEERS; i++) {
        check(read(in, far[i], ADDRESS) == ADDRESS ? 0 : -FI_EIO, "an address");
        check(fi_av_insert(end.av, far[i], 1, &to[i], 0, NULL), "fi_av_insert");
    }
    check(write(out, end.address, ADDRESS), "write");
    check(read(in, ready, 5) == 5 ? 0 : -FI_EIO, "the other end");
    for (int batch = -1; batch < BATCHES; batch++) {
        double begin = now();
        for (int i = 0; i < TURNS * PEERS; i++) {
            receive(&end);
            inject(&end, to[i % PEERS]);
            while (!arrived(&end))
                ;
        }
        if (batch >= 0)
            batches[batch] = (now() - begin) / (TURNS * PEERS);
    }
    printf("peers-%d %.6g\n", PEERS, median(batches, BATCHES));
    close_end(&end);
}

int main(int argc, char **argv)
{
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGTERM, end_turns);
    }
    struct fi_info *info = choose(argc > 1 ? argv[1] : NULL);
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    if (child == 0) {
        answer(info, domain, there[0], back[1]);
    } else {
        close(back[1]);
        ask(info, domain, back[0], there[1]);
        kill(child, SIGTERM);
        waitpid(child, NULL, 0);
    }
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    return 0;
}
