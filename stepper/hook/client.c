/* The hook process, where a C compiler was at hand: what process.py does as long as all is well, without the 8 ms that an
 * interpreter takes to start. Whatever else comes up (no daemon, another version, a daemon that went away) is process.py's:
 * this process becomes a Python that reads the same standard input, and is told what was asked already.
 *
 *     hook PYTHON PACKAGES ROOT EVENT
 *
 * With the event Wake, `Wake again` or Rearm it stands by to wake the agent, maybe for hours: what the daemon tells goes to
 * standard error and this process ends with 2, which the client takes for a message to the agent.
 *
 * Frames are wire.py's, the socket's place is meeting.py's; the tests of the hook process run with both clients.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SILENCE_SECONDS 7 /* client.py's */
#define MOST_BYTES (1u << 30)
#define NAP_SECONDS 0.5 /* most cells are over by then, and nobody need be asked */
#define COMES_SECONDS 20 /* for the daemon to be there, which the edit's own event starts */

extern char **environ;

static struct {
    char *data;
    size_t size;
} payload;
static char **arguments;
static int sock = -1, waking, woke;
static pid_t parent;
static const char *const RUN = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()";

/* Put bytes where a process can read them from a descriptor; return that, or -1. */
static int kept(const char *data, size_t size) {
#ifdef MFD_CLOEXEC
    int file = memfd_create("stepper", 0); /* in memory: the disk may be full */
#else
    FILE *made = tmpfile();
    int file = made ? fileno(made) : -1;
#endif
    while (file >= 0 && size) {
        ssize_t put = write(file, data, size);
        if (put < 0 && errno != EINTR)
            return -1;
        data += put > 0 ? put : 0;
        size -= put > 0 ? put : 0;
    }
    return file >= 0 && lseek(file, 0, SEEK_SET) == 0 ? file : -1;
}

/* Become the Python client. `how` tells what came of the request: NULL where it was none, else process.py's word for it;
 * `body` is what the daemon answered. */
static void hand_over(const char *how, const char *body, size_t size) {
    char *command[10];
    int count = 0, handle;
    if (woke)
        _exit(2);
    handle = kept(payload.data, payload.size);
    if (sock >= 0)
        close(sock); /* the daemon sees that nobody waits here any more */
    if (handle >= 0)
        dup2(handle, 0);
    else if (!how || strcmp(how, "failed"))
        how = how && !strncmp(how, "accepted", 8) ? "accepted, unread" : "unread";
    if (body && (handle = kept(body, size)) >= 0)
        dup2(handle, 3);
    command[count++] = arguments[1];
    command[count++] = "-I";
    command[count++] = "-S";
    command[count++] = "-c";
    command[count++] = (char *)RUN;
    command[count++] = arguments[2];
    if (how)
        command[count++] = (char *)how;
    command[count++] = arguments[3];
    command[count++] = arguments[4];
    command[count] = NULL;
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    execv(arguments[1], command);
    if (!strcmp(arguments[4], "PostToolUse"))
        puts("{\"systemMessage\":\"stepper: its Python can't be started, so the cell was not run, or its report is lost. "
             "What mends it: uvx notebook-stepper install THIS_REPOSITORY "
             "(or, from a checkout of stepper: ./install.sh THIS_REPOSITORY)\"}");
    fflush(stdout);
    _exit(0); /* a hook never fails the person's edit */
}

/* Return whether all of standard input could be read: half a payload is none. */
static int read_payload(void) {
    size_t room = 1 << 16;
    ssize_t got;
    payload.data = malloc(room);
    while (payload.data && (got = read(0, payload.data + payload.size, room - payload.size)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return 0;
        payload.size += got;
        if (payload.size == room)
            payload.data = realloc(payload.data, room *= 2);
    }
    return payload.data != NULL;
}

/* Where the daemon listens, as in meeting.py; return 0 where that is not below /tmp or /var/tmp. */
static int find_socket(struct sockaddr_un *address, const char *project) {
    static const char *const roots[] = {"/tmp", "/var/tmp"};
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *at = project; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001B3u;
    for (int i = 0; i < 2; i++) {
        char folder[64];
        struct stat about;
        snprintf(folder, sizeof folder, "%s/stepper-%u", roots[i], (unsigned)getuid());
        if (lstat(folder, &about) != 0)
            return 0; /* nobody has been here yet */
        if (S_ISDIR(about.st_mode) && about.st_uid == getuid()) {
            address->sun_family = AF_UNIX;
            snprintf(address->sun_path, sizeof address->sun_path, "%s/%016llx/daemon.sock", folder,
                     (unsigned long long)hash);
            return 1;
        }
    }
    return 0;
}

static int same_user(int sock) {
#ifdef SO_PEERCRED
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
#else
    uid_t user;
    gid_t group;
    return getpeereid(sock, &user, &group) == 0 && user == getuid();
#endif
}

static void put_size(char *at, uint64_t size) {
    for (int i = 7; i >= 0; i--, size >>= 8)
        at[i] = (char)(size & 255);
}

static uint64_t get_size(const unsigned char *at) {
    uint64_t size = 0;
    for (int i = 0; i < 8; i++)
        size = size << 8 | at[i];
    return size;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Send the request, in SILENCE_SECONDS at most; what else stops that is seen by whoever reads the answer. */
static void ask(const char *event, const char *project) {
    enum { PARTS = 5 };
    char verb[64], head[5 + 8 * PARTS] = "STP1\5";
    size_t room = 1;
    for (char **one = environ; *one; one++)
        room += strlen(*one) + 1;
    char *block = malloc(room), *end = block;
    for (char **one = environ; block && *one; one++)
        if (strchr(*one, '=')) {
            if (end > block)
                *end++ = '\0';
            end = stpcpy(end, *one);
        }
    snprintf(verb, sizeof verb, "hook %s", event);
    struct iovec parts[1 + PARTS] = {{head, sizeof head},
                                     {verb, strlen(verb)},
                                     {VERSION, strlen(VERSION)},
                                     {block, block ? (size_t)(end - block) : 0},
                                     {(char *)project, strlen(project)},
                                     {payload.data, payload.size}};
    for (int i = 0; i < PARTS; i++)
        put_size(head + 5 + 8 * i, parts[1 + i].iov_len);
    double began = now();
    for (int at = 0; at < 1 + PARTS;) {
        ssize_t sent = writev(sock, parts + at, 1 + PARTS - at);
        if (sent < 0 && errno == EINTR)
            continue;
        if (now() > began + SILENCE_SECONDS - 0.5 && (sent >= 0 || errno == EAGAIN || errno == EWOULDBLOCK))
            hand_over("silent", NULL, 0);
        if (sent < 0)
            return;
        while (at < 1 + PARTS && (size_t)sent >= parts[at].iov_len)
            sent -= parts[at++].iov_len;
        if (at < 1 + PARTS) {
            parts[at].iov_base = (char *)parts[at].iov_base + sent;
            parts[at].iov_len -= sent;
        }
    }
}

/* Whether nobody waits for the answer any more: a client that is killed closes nothing politely. */
static int left_alone(void) {
    struct pollfd out = {1, 0, 0};
    poll(&out, 1, 0);
    return getppid() != parent || out.revents & (POLLERR | POLLHUP);
}

/* Read `size` bytes; return 1, 0 where the daemon went away, -1 where it is silent for too long. Who stands by to wake an
 * agent has the time: the machine may have been suspended. */
static int take(void *into, size_t size) {
    while (size) {
        ssize_t got = recv(sock, into, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && waking) {
            if (left_alone())
                _exit(woke ? 2 : 0);
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return -1;
        if (got <= 0)
            return 0;
        into = (char *)into + got;
        size -= got;
    }
    return 1;
}

/* Read answers up to the last one, which is the exit. */
static void follow(void) {
    for (int beats = 0;;) {
        unsigned char head[5 + 16];
        char kind[16] = "", *body = NULL;
        int got = take(head, sizeof head);
        uint64_t first = got > 0 ? get_size(head + 5) : 0, second = got > 0 ? get_size(head + 13) : 0;
        if (got > 0 && (memcmp(head, "STP1\2", 5) || first >= sizeof kind || second > MOST_BYTES))
            got = 0; /* no frame of ours */
        if (got > 0 && (body = malloc(second + 1)) && (got = take(kind, first)) > 0)
            got = take(body, second);
        if (got <= 0 || !body)
            hand_over(got < 0 ? (beats ? "accepted, silent" : "silent") : beats ? "accepted, gone" : NULL, NULL, 0);
        if (!strcmp(kind, "progress")) {
            if (beats++ && left_alone())
                _exit(0);
            if (waking && second && !*body) { /* what to ask the next daemon with, should this one die */
                free(payload.data);
                payload.data = memmove(body, body + 1, payload.size = second - 1);
                body = NULL;
            } else if (waking && second && send(sock, "+", 1, 0) == 1) {
                woke = write(2, body, second) >= 0; /* first the word that it is told: else the next daemon tells it */
            }
        } else if (!strcmp(kind, "ok")) {
            for (ssize_t sent = 0; second; body += sent, second -= sent)
                if ((sent = write(1, body, second)) < 0 && (sent = 0, errno != EINTR))
                    break;
            _exit(woke ? 2 : 0);
        } else if (waking && !strcmp(kind, "stale")) {
            hand_over("stale", NULL, 0);
        } else {
            hand_over(strcmp(kind, "failed") ? NULL : "failed", body, second);
        }
        free(body);
    }
}

/* Leave the two copies of the notebook out of the payload, which is kept for as long as this process waits; payload.py's
 * `lean` says where they stand. */
static void lean(void) {
    static const char start[] = "\"original_file\":\"", end[] = "\"},\"tool_use_id\":\"";
    char *answer = memmem(payload.data, payload.size, "\"tool_response\":{", 17);
    char *from = answer ? memmem(answer, payload.data + payload.size - answer, start, sizeof start - 1) : NULL;
    char *last = NULL, *short_one;
    for (char *at = from; at; at = memmem(at + 1, payload.data + payload.size - at - 1, end, sizeof end - 1))
        last = at;
    if (!from || last == from || last[-1] == '\\')
        return;
    size_t head = from + sizeof start - 1 - payload.data, tail = payload.data + payload.size - last;
    if (!(short_one = malloc(head + tail)))
        return;
    memcpy(short_one, payload.data, head);
    memcpy(short_one + head, last, tail);
    free(payload.data);
    payload.data = short_one;
    payload.size = head + tail;
}

/* Whether an agent can be woken: with `-p` the client waits for this process instead, unless it reads a stream, whose end
 * ends it, too. */
static int can_wake(void) {
    const char *entry = getenv("CLAUDE_CODE_ENTRYPOINT");
    char path[64], words[1 << 16];
    struct pollfd in = {-1, POLLIN, 0};
    struct stat about;
    FILE *file;
    if (!entry || strncmp(entry, "sdk-", 4))
        return 1;
    snprintf(path, sizeof path, "/proc/%d/fd/0", (int)parent);
    if ((in.fd = open(path, O_RDONLY | O_NONBLOCK)) >= 0 &&
        ((poll(&in, 1, 0) > 0 && in.revents & POLLHUP) || fstat(in.fd, &about) != 0 || S_ISREG(about.st_mode) ||
         (S_ISCHR(about.st_mode) && !isatty(in.fd))))
        return 0;
    close(in.fd);
    if (strcmp(entry, "sdk-cli"))
        return 1;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)parent);
    if (!(file = fopen(path, "r")))
        return 0;
    size_t size = fread(words, 1, sizeof words, file);
    fclose(file);
    return memmem(words, size, "--input-format\0stream-json", 26) || memmem(words, size, "--input-format=stream-json", 26);
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

/* Connect to the daemon; return 0 where none listens. Many may ask at once: it waits for its turn, up to the limit. */
static int reach(const char *project) {
    struct sockaddr_un address = {0};
    struct timeval patience = {SILENCE_SECONDS, 0};
    if (!find_socket(&address, project))
        return 0;
    sock = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(sock, (struct sockaddr *)&address, sizeof address) == 0)
        return 1;
    if (errno == EAGAIN && !waking)
        hand_over("silent", NULL, 0);
    close(sock);
    sock = -1;
    return 0;
}

int main(int count, char **given) {
    static char project[PATH_MAX];
    if (count == 2 && !strcmp(given[1], "--version"))
        return puts(VERSION) < 0;
    if (count != 5)
        return 0;
    arguments = given;
    parent = getppid();
    const char *event = given[4];
    waking = !strncmp(event, "Wake", 4) || !strcmp(event, "Rearm");
    if (waking && !can_wake())
        return 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (!read_payload())
        hand_over("unread", NULL, 0);
    if (waking)
        lean();
    /* What is nobody's business while no notebook is under way, and plain words of the person, are process.py's. */
    if (!strcmp(event, "UserPromptSubmit") || !strcmp(event, "Stop") || !strcmp(event, "SessionStart") ||
        chdir(given[3]) != 0 || !getcwd(project, sizeof project))
        hand_over(NULL, NULL, 0);
    if (!strcmp(event, "Wake")) {
        double until = now() + COMES_SECONDS;
        for (nap(NAP_SECONDS); !reach(project); nap(NAP_SECONDS))
            if (now() > until || left_alone())
                return 0;
    } else if (!reach(project)) {
        hand_over(NULL, NULL, 0);
    }
    if (!same_user(sock))
        hand_over(NULL, NULL, 0);
    ask(event, project);
    follow();
}
