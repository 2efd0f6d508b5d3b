/* What the C programs here want of a call: else they print what they got and end. */
#include <stdio.h>
#include <stdlib.h>

#define WANT(call, wanted)                                                              \
	do {                                                                            \
		long got_ = (long)(call);                                               \
		if (got_ != (long)(wanted)) {                                           \
			printf("line %d: %s = %ld, wanted %ld\n", __LINE__, #call,      \
			       got_, (long)(wanted));                                   \
			exit(1);                                                        \
		}                                                                       \
	} while (0)
#define OK(call) WANT(call, 0)
