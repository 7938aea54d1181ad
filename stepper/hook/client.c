/* The compiled hook process. It does what process.py does if no error occurs, and saves the 8 ms that a Python interpreter
 * takes to start. In all other cases (no daemon, a daemon of another version, a daemon that exited) it executes process.py,
 * which reads the same standard input and gets the result of the request so far as an argument.
 *
 *     hook PYTHON PACKAGES ROOT EVENT
 *
 * For the events Wake, `Wake again` and Rearm it waits for a message to the agent, possibly for hours. It prints the message
 * on standard error and exits with code 2, by which Claude Code recognizes a message to the agent.
 *
 * wire_format.py defines the frames, socket_path.py the path of the socket. The tests of the hook process run with both
 * clients.
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

#define SILENCE_SECONDS 7 /* as in client.py */
#define MOST_BYTES (1u << 30)
#define NAP_SECONDS 0.5 /* most cells have finished by then, and the daemon need not be asked */
#define COMES_SECONDS 20 /* until the hook of the edit has started the daemon */

extern char **environ;

static struct {
    char *data;
    size_t size;
} payload;
static char **arguments;
static int sock = -1, waking, woke;
static pid_t parent;
static const char *const RUN = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()";

/* Write bytes to a temporary file; return its file descriptor, or -1 on failure. */
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

/* Replace this process by the Python client. `how` is process.py's word for the result of the request, NULL if no request
 * was sent; `body` is the daemon's response. */
static void hand_over(const char *how, const char *body, size_t size) {
    char *command[10];
    int count = 0, handle;
    if (woke)
        _exit(2);
    handle = kept(payload.data, payload.size);
    if (sock >= 0)
        close(sock); /* the daemon notices that this client disconnected */
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
             "To fix this, run: uvx notebook-stepper install THIS_REPOSITORY "
             "(or, from a checkout of stepper: ./install.sh THIS_REPOSITORY)\"}");
    fflush(stdout);
    _exit(0); /* a hook must never make the user's edit fail */
}

/* Read standard input; return 0 if not all of it could be read. */
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

/* Set the address of the daemon's socket, as in socket_path.py; return 0 if it is not below /tmp or /var/tmp. */
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
            return 0; /* no daemon has been started yet */
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

/* Send the request, within SILENCE_SECONDS. The function that reads the response handles all other errors. */
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

/* Return whether the client is gone. If it was killed, only its end of our standard output or our parent has changed. */
static int left_alone(void) {
    struct pollfd out = {1, 0, 0};
    poll(&out, 1, 0);
    return getppid() != parent || out.revents & (POLLERR | POLLHUP);
}

/* Read `size` bytes; return 1 on success, 0 if the daemon exited, -1 if it was silent for too long. A process that waits
 * for a message has no time limit: the machine may have been suspended. */
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

/* Handle responses up to the final one, then exit. */
static void follow(void) {
    for (int beats = 0;;) {
        unsigned char head[5 + 16];
        char kind[16] = "", *body = NULL;
        int got = take(head, sizeof head);
        uint64_t first = got > 0 ? get_size(head + 5) : 0, second = got > 0 ? get_size(head + 13) : 0;
        if (got > 0 && (memcmp(head, "STP1\2", 5) || first >= sizeof kind || second > MOST_BYTES))
            got = 0; /* not a valid frame */
        if (got > 0 && (body = malloc(second + 1)) && (got = take(kind, first)) > 0)
            got = take(body, second);
        if (got <= 0 || !body)
            hand_over(got < 0 ? (beats ? "accepted, silent" : "silent") : beats ? "accepted, gone" : NULL, NULL, 0);
        if (!strcmp(kind, "progress")) {
            if (beats++ && left_alone())
                _exit(0);
            if (waking && second && !*body) { /* the request for the next daemon, if this one exits */
                free(payload.data);
                payload.data = memmove(body, body + 1, payload.size = second - 1);
                body = NULL;
            } else if (waking && second && send(sock, "+", 1, 0) == 1) {
                woke = write(2, body, second) >= 0; /* acknowledge first: otherwise the next daemon repeats it */
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

/* Remove the two copies of the notebook from the payload, which stays in memory while this process waits. `lean` in
 * payload.py describes their position. */
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

/* Return whether the client can notify its agent; can_notify in process.py has the same rule. With `-p`, the client waits
 * for this process to exit, unless it reads a stream of messages. */
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

/* Connect to the daemon; return 0 if no daemon listens. If many clients connect at once, wait, up to the time limit. */
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
    /* process.py handles prompts, and the events that matter only while a notebook is in progress. */
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
