/* What the C programs here open everything else in: a domain of the provider and an address
 * vector, of what was asked for. */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <string.h>

#include "want.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;

/* Hints for reliable endpoints of the provider; who asks frees them. */
static inline struct fi_info *asked(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();

	hints->caps = caps;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("isthmus");
	return hints;
}

/* What there is of that, which the caller frees; frees the hints. */
static inline struct fi_info *offered(struct fi_info *hints)
{
	struct fi_info *found;

	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	fi_freeinfo(hints);
	return found;
}

/* Opens them as `info` says. */
static inline void open_domain(void)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &table, &av, NULL));
}

/* Nothing that was opened in them may be left. */
static inline void close_domain(void)
{
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
}
