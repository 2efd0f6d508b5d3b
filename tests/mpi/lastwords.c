// A rank that fails tells its launcher to end the job only once the launcher has read why.
#include "check.h"

#include <poll.h>
#include <sys/wait.h>

// How long the reader lets the failed process wait. Milliseconds; without waiting, that one ends much sooner.
enum { LATE_MS = 200 };

// Takes the place of the MPI's, and exits with 3 if something is still unread.
int MPI_Abort(MPI_Comm comm, int code)
{
    int unread = 1;
    (void)comm, (void)code;
    _exit(ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread == 0 ? 0 : 3);
}

int main(int argc, char **argv)
{
    int ends[2], status = 0;
    char words[256] = "";
    start(&argc, &argv, "lastwords");
    CHECK(pipe(ends) == 0, "no pipe");
    pid_t failing = fork();
    if (failing == 0) {
        dup2(ends[1], STDERR_FILENO);
        fail("my last words");
    }
    close(ends[1]);
    struct pollfd said = {.fd = ends[0], .events = POLLIN};
    CHECK(failing > 0 && poll(&said, 1, 10000) == 1, "it says nothing");
    sleep_ms(LATE_MS);
    size_t length = 0;
    for (ssize_t more; (more = read(ends[0], words + length, sizeof words - 1 - length)) > 0;)
        length += (size_t)more;
    CHECK(waitpid(failing, &status, 0) == failing && WIFEXITED(status), "it was not to be killed");
    CHECK(WEXITSTATUS(status) == 0, "exit status %d: it aborts before its words are read", WEXITSTATUS(status));
    CHECK(strstr(words, ": my last words\n"), "it says %s", words);
    return finish("read before the abort");
}
