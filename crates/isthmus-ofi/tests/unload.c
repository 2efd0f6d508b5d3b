/* Unloads libfabric, which it loaded itself, with an endpoint open: the process must live
 * on, and the endpoint too. Arguments: the libfabric. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <unistd.h>

#include "want.h"

typedef int getinfo_t(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		      struct fi_info **);
typedef int fabric_t(struct fi_fabric_attr *, struct fid_fabric **, void *);
typedef void freeinfo_t(struct fi_info *);

int main(int count, char **words)
{
	void *library = dlopen(count > 1 ? words[1] : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fi_cq_tagged_entry entry;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	char name[64], text[8] = "hello", buffer[8] = "";
	size_t len = sizeof name;
	fi_addr_t self;

	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	OK(((getinfo_t *)dlsym(library, "fi_getinfo"))(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info));
	OK(strcmp(info->fabric_attr->prov_name, "isthmus"));
	OK(((fabric_t *)dlsym(library, "fi_fabric"))(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &table, &av, NULL));
	OK(fi_cq_open(domain, &queue, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &len));
	WANT(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
	((freeinfo_t *)dlsym(library, "fi_freeinfo"))(info);
	OK(dlclose(library));
	/* Nobody polls: the library's own thread has its turn. */
	usleep(50000);
	OK(fi_trecv(ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	OK(fi_tinject(ep, text, sizeof text, self, 1));
	WANT(fi_cq_sread(cq, &entry, 1, NULL, 10000), 1);
	OK(strcmp(buffer, "hello"));
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	return 0;
}
