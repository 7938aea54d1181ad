/* The compiled hook process. If no error occurs, it does the same as hook_process.py, and saves the
 * 8 ms that a Python interpreter takes to start. In all other cases (no daemon, a daemon of another
 * version, a daemon that exited) it executes hook_process.py, which reads the same standard input.
 * An argument contains the result of the request so far.
 *
 *     hook PYTHON PACKAGES ROOT EVENT
 *
 * For the events Wake, `Wake again` and Rearm, it waits for a message to the agent, possibly for
 * hours. It prints the message on standard error and exits with code 2, so that Claude Code sends
 * the message to the agent.
 *
 * PROTOCOL.md describes what both hook processes do; tests/test_hook_protocol.py runs its
 * scenarios with both.
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

#define SILENCE_SECONDS 7 /* as in daemon_client.py */
#define MAX_BYTES (1u << 30)
#define READ_SECONDS 2 /* for the events of a read */
#define RETRY_SECONDS 0.5      /* most cells have finished by then, so Wake sends no request */
#define DAEMON_WAIT_SECONDS 20 /* for the daemon that the hook of the edit starts */

extern char **environ;

static struct {
    char *data;
    size_t size;
} payload;
static char **arguments; /* the arguments of main() */
static int sock = -1;
static int is_notifier;     /* whether this process waits for a message to the agent */
static int message_printed; /* whether the message to the agent was printed */
static pid_t parent;
static const char *const RUN =
    "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()";

/* Write bytes to a temporary file; return its file descriptor, or -1 on failure. */
static int write_temporary_file(const char *data, size_t size) {
#ifdef MFD_CLOEXEC
    int file = memfd_create("stepper", 0); /* in memory: the disk may be full */
#else
    FILE *stream = tmpfile();
    int file = stream ? fileno(stream) : -1;
#endif
    while (file >= 0 && size) {
        ssize_t written = write(file, data, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        data += written;
        size -= written;
    }
    if (file < 0 || lseek(file, 0, SEEK_SET) != 0)
        return -1;
    return file;
}

/* Replace this process with hook_process.py. `result` is the result of the request, or NULL if
 * hook_process.py must send the request. `body` is the daemon's response. */
static void run_python(const char *result, const char *body, size_t size) {
    char *command[10];
    int count = 0;
    if (message_printed)
        _exit(2);
    int input = write_temporary_file(payload.data, payload.size);
    if (sock >= 0)
        close(sock); /* the daemon notices that this client disconnected */
    if (input >= 0)
        dup2(input, 0);
    else if (result && !strncmp(result, "accepted", 8))
        result = "accepted, unread";
    else if (!result || strcmp(result, "failed"))
        result = "unread";
    if (body) {
        int response = write_temporary_file(body, size);
        if (response >= 0)
            dup2(response, 3);
    }
    command[count++] = arguments[1];
    command[count++] = "-I";
    command[count++] = "-S";
    command[count++] = "-c";
    command[count++] = (char *)RUN;
    command[count++] = arguments[2];
    if (result)
        command[count++] = (char *)result;
    command[count++] = arguments[3];
    command[count++] = arguments[4];
    command[count] = NULL;
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGALRM, SIG_IGN); /* hook_process.py handles the alarm that is set */
    execv(arguments[1], command);
    if (!strcmp(arguments[4], "PostToolUse"))
        puts("{\"systemMessage\":\"stepper: its Python can't be started. The cell did not run, "
             "or its report is lost. To fix this, run: uvx notebook-stepper install "
             "THIS_REPOSITORY (or, from a checkout of stepper: ./install.sh THIS_REPOSITORY)\"}");
    fflush(stdout);
    _exit(0); /* a hook must never make the user's edit fail */
}

/* Read standard input; return 0 if not all of it could be read. */
static int read_payload(void) {
    size_t capacity = 1 << 16;
    payload.data = malloc(capacity);
    while (payload.data) {
        ssize_t count = read(0, payload.data + payload.size, capacity - payload.size);
        if (count == 0)
            return 1;
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return 0;
        payload.size += count;
        if (payload.size == capacity) {
            capacity *= 2;
            payload.data = realloc(payload.data, capacity);
        }
    }
    return 0;
}

/* Set the address of the daemon's socket, as in hook_paths.py; return 0 if it is not below /tmp or
 * /var/tmp. */
static int find_socket(struct sockaddr_un *address, const char *project) {
    static const char *const roots[] = {"/tmp", "/var/tmp"};
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *byte = project; *byte; byte++)
        hash = (hash ^ (unsigned char)*byte) * 0x100000001B3u;
    for (int i = 0; i < 2; i++) {
        char folder[64];
        struct stat status;
        snprintf(folder, sizeof folder, "%s/stepper-%u", roots[i], (unsigned)getuid());
        if (lstat(folder, &status) != 0)
            return 0; /* no daemon has been started yet */
        if (S_ISDIR(status.st_mode) && status.st_uid == getuid()) {
            address->sun_family = AF_UNIX;
            snprintf(address->sun_path, sizeof address->sun_path, "%s/%016llx/daemon.sock", folder,
                     (unsigned long long)hash);
            return 1;
        }
    }
    return 0;
}

static int is_same_user(int sock) {
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

/* Write the length of a part, 8 bytes in big-endian order. */
static void encode_length(char *field, uint64_t length) {
    for (int i = 7; i >= 0; i--) {
        field[i] = (char)(length & 255);
        length >>= 8;
    }
}

static uint64_t decode_length(const unsigned char *field) {
    uint64_t length = 0;
    for (int i = 0; i < 8; i++)
        length = length << 8 | field[i];
    return length;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Return whether the last call on the socket failed because of its timeout, SILENCE_SECONDS. */
static int is_timeout(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

/* Return the environment in the format of wire_format.pack_environ, and set its size. Return NULL
 * if there is not enough memory. */
static char *pack_environ(size_t *size) {
    size_t capacity = 1;
    for (char **variable = environ; *variable; variable++)
        capacity += strlen(*variable) + 1;
    char *block = malloc(capacity), *end = block;
    *size = 0;
    if (!block)
        return NULL;
    for (char **variable = environ; *variable; variable++) {
        if (!strchr(*variable, '='))
            continue;
        if (end > block)
            *end++ = '\0';
        end = stpcpy(end, *variable);
    }
    *size = end - block;
    return block;
}

/* Send the request, within SILENCE_SECONDS. The function that receives the responses handles all
 * other errors. */
static void send_request(const char *event, const char *project) {
    enum { PARTS = 5 };
    char command[64], head[5 + 8 * PARTS] = "STP1\5";
    size_t environ_size;
    char *environ_block = pack_environ(&environ_size);
    snprintf(command, sizeof command, "hook %s", event);
    struct iovec parts[1 + PARTS] = {{head, sizeof head},
                                     {command, strlen(command)},
                                     {VERSION, strlen(VERSION)},
                                     {environ_block, environ_size},
                                     {(char *)project, strlen(project)},
                                     {payload.data, payload.size}};
    for (int i = 0; i < PARTS; i++)
        encode_length(head + 5 + 8 * i, parts[1 + i].iov_len);
    double deadline = now() + SILENCE_SECONDS - 0.5;
    int next = 0; /* the first part that is not sent completely */
    while (next < 1 + PARTS) {
        ssize_t sent = writev(sock, parts + next, 1 + PARTS - next);
        if (sent < 0 && errno == EINTR)
            continue;
        if (now() > deadline && (sent >= 0 || is_timeout()))
            run_python("silent", NULL, 0);
        if (sent < 0)
            return;
        while (next < 1 + PARTS && (size_t)sent >= parts[next].iov_len)
            sent -= parts[next++].iov_len;
        if (next < 1 + PARTS) {
            parts[next].iov_base = (char *)parts[next].iov_base + sent;
            parts[next].iov_len -= sent;
        }
    }
}

/* Return whether Claude Code exited or was killed. If it was killed, the other end of standard
 * output is closed, or the parent process has changed. */
static int is_abandoned(void) {
    struct pollfd output = {1, 0, 0};
    poll(&output, 1, 0);
    return getppid() != parent || output.revents & (POLLERR | POLLHUP);
}

/* Read `size` bytes; return 1 on success, 0 if the daemon exited, -1 if it was silent for too long.
 * A process that waits for a message has no time limit: the machine may have been suspended. */
static int receive(void *buffer, size_t size) {
    while (size) {
        ssize_t count = recv(sock, buffer, size, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && is_timeout() && !is_notifier)
            return -1;
        if (count < 0 && is_timeout()) {
            if (is_abandoned())
                _exit(message_printed ? 2 : 0);
            continue;
        }
        if (count <= 0)
            return 0;
        buffer = (char *)buffer + count;
        size -= count;
    }
    return 1;
}

/* Receive a response. Return the same values as `receive`, or 0 if the response is invalid. The
 * caller frees `body`. A NUL follows the `size` bytes of the body. */
static int receive_response(char kind[16], char **body, size_t *size) {
    unsigned char head[5 + 16];
    memset(kind, 0, 16);
    *body = NULL;
    int received = receive(head, sizeof head);
    if (received <= 0)
        return received;
    uint64_t kind_size = decode_length(head + 5), body_size = decode_length(head + 13);
    if (memcmp(head, "STP1\2", 5) || kind_size >= 16 || body_size > MAX_BYTES)
        return 0;
    *size = body_size;
    *body = calloc(1, body_size + 1);
    if (!*body)
        return 0;
    received = receive(kind, kind_size);
    if (received <= 0)
        return received;
    return receive(*body, body_size);
}

/* Print the final response. Errors are ignored, because Claude Code no longer reads the output. */
static void print_response(const char *body, size_t size) {
    alarm(0);
    while (size) {
        ssize_t written = write(1, body, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return;
        body += written;
        size -= written;
    }
}

/* Handle responses up to the final one, then exit. */
static void handle_responses(void) {
    for (int progress_count = 0;;) {
        char kind[16], *body;
        size_t size = 0;
        int received = receive_response(kind, &body, &size);
        if (received < 0)
            run_python(progress_count ? "accepted, silent" : "silent", NULL, 0);
        if (received == 0)
            run_python(progress_count ? "accepted, gone" : NULL, NULL, 0);
        if (!strcmp(kind, "progress")) {
            if (progress_count++ && is_abandoned())
                _exit(0);
            if (is_notifier && size && !*body) {
                /* The payload for the next daemon, if this one exits. */
                free(payload.data);
                payload.size = size - 1;
                payload.data = memmove(body, body + 1, payload.size);
                body = NULL;
            } else if (is_notifier && size && send(sock, "+", 1, 0) == 1) {
                /* Acknowledged before it is printed: otherwise the next daemon repeats it. */
                message_printed = write(2, body, size) >= 0;
            }
        } else if (!strcmp(kind, "ok")) {
            print_response(body, size);
            _exit(message_printed ? 2 : 0);
        } else if (is_notifier && !strcmp(kind, "stale")) {
            run_python("stale", NULL, 0);
        } else if (!strcmp(kind, "failed")) {
            run_python("failed", body, size);
        } else {
            run_python(NULL, NULL, 0);
        }
        free(body);
    }
}

/* Return the first occurrence of a text at or after `start` in the payload, or NULL. */
static char *find_in_payload(char *start, const char *text) {
    if (!start)
        return NULL;
    return memmem(start, payload.data + payload.size - start, text, strlen(text));
}

/* Remove the two copies of the notebook from the payload, which stays in memory while this process
 * waits. `remove_notebook_copies` in hook_output.py describes their position. */
static void remove_notebook_copies(void) {
    static const char start_text[] = "\"original_file\":\"", end_text[] = "\"},\"tool_use_id\":\"";
    char *response = find_in_payload(payload.data, "\"tool_response\":{");
    char *cell_id = find_in_payload(response, "\"cell_id\":\"");
    char *start = find_in_payload(response, start_text);
    char *end = NULL;
    for (char *next = start; next; next = find_in_payload(next + 1, end_text))
        end = next; /* the last occurrence */
    if (!start || end == start || end[-1] == '\\')
        return;
    if (!cell_id || cell_id > start) /* the daemon needs what is after the copies */
        return;
    size_t head_size = start + sizeof start_text - 1 - payload.data;
    size_t tail_size = payload.data + payload.size - end;
    char *shortened = malloc(head_size + tail_size);
    if (!shortened)
        return;
    memcpy(shortened, payload.data, head_size);
    memcpy(shortened + head_size, end, tail_size);
    free(payload.data);
    payload.data = shortened;
    payload.size = head_size + tail_size;
}

/* Return whether the standard input of a process is open, and is neither a file nor /dev/null.
 * Return 1 if it can't be examined, because it may be a socket. */
static int has_open_input(pid_t process) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/0", (int)process);
    struct pollfd input = {open(path, O_RDONLY | O_NONBLOCK), POLLIN, 0};
    if (input.fd < 0)
        return 1;
    int is_closed = poll(&input, 1, 0) > 0 && input.revents & POLLHUP;
    int is_known = fstat(input.fd, &status) == 0;
    int is_device = is_known && S_ISCHR(status.st_mode) && !isatty(input.fd);
    int is_file = is_known && S_ISREG(status.st_mode);
    close(input.fd);
    return is_known && !is_closed && !is_device && !is_file;
}

/* Return whether the client can notify its agent. can_notify in hook_process.py has the same rule.
 * With `-p`, the client waits for this process to exit, unless it reads a stream of messages. */
static int can_notify(void) {
    static const char option[] = "--input-format=stream-json";
    static const char separated[] = "--input-format\0stream-json";
    const char *entrypoint = getenv("CLAUDE_CODE_ENTRYPOINT");
    char path[64], command_line[1 << 16];
    if (!entrypoint || strncmp(entrypoint, "sdk-", 4))
        return 1;
    if (!has_open_input(parent))
        return 0;
    if (strcmp(entrypoint, "sdk-cli"))
        return 1;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)parent);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t size = fread(command_line, 1, sizeof command_line, file);
    fclose(file);
    return memmem(command_line, size, separated, sizeof separated - 1) ||
           memmem(command_line, size, option, sizeof option - 1);
}

static void sleep_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

/* Connect to the daemon. Return 0 if no daemon listens. If many clients connect at the same time,
 * wait for up to SILENCE_SECONDS. */
static int connect_to_daemon(const char *project) {
    struct sockaddr_un address = {0};
    struct timeval limit = {SILENCE_SECONDS, 0};
    if (!find_socket(&address, project))
        return 0;
    sock = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(sock, (struct sockaddr *)&address, sizeof address) == 0)
        return 1;
    if (errno == EAGAIN && !is_notifier)
        run_python("silent", NULL, 0);
    close(sock);
    sock = -1;
    return 0;
}

/* Connect to the daemon that the hook of the edit starts; return 0 if none listens in time. */
static int wait_for_daemon(const char *project) {
    double deadline = now() + DAEMON_WAIT_SECONDS;
    sleep_seconds(RETRY_SECONDS);
    while (!connect_to_daemon(project)) {
        if (now() > deadline || is_abandoned())
            return 0;
        sleep_seconds(RETRY_SECONDS);
    }
    return 1;
}

/* Return whether hook_process.py must handle an event: a prompt, or an event that matters only
 * while a notebook is in progress. */
static int needs_python(const char *event) {
    return !strcmp(event, "UserPromptSubmit") || !strcmp(event, "Stop") ||
           !strcmp(event, "SessionStart");
}

/* Return whether an event belongs to a read, which must not wait for a busy daemon. */
static int is_read(const char *event) {
    return !strcmp(event, "BeforeRead") || !strcmp(event, "AfterRead") ||
           !strcmp(event, "ReadFailed");
}

/* Exit without output. */
static void give_up(int number) {
    (void)number;
    _exit(0);
}

int main(int count, char **argv) {
    static char project[PATH_MAX];
    if (count == 2 && !strcmp(argv[1], "--version"))
        return puts(VERSION) < 0;
    if (count != 5)
        return 0;
    arguments = argv;
    parent = getppid();
    const char *event = argv[4];
    is_notifier = !strncmp(event, "Wake", 4) || !strcmp(event, "Rearm");
    if (is_notifier && !can_notify())
        return 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (is_read(event)) {
        signal(SIGALRM, give_up);
        alarm(READ_SECONDS);
    }
    if (!read_payload())
        run_python("unread", NULL, 0);
    if (is_notifier)
        remove_notebook_copies();
    if (needs_python(event) || chdir(argv[3]) != 0 || !getcwd(project, sizeof project))
        run_python(NULL, NULL, 0);
    if (!strcmp(event, "Wake")) {
        if (!wait_for_daemon(project))
            return 0;
    } else if (!connect_to_daemon(project)) {
        run_python(NULL, NULL, 0);
    }
    if (!is_same_user(sock))
        run_python(NULL, NULL, 0);
    send_request(event, project);
    handle_responses();
}
