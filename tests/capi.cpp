/* redlock.hpp with three servers: capi URL URL URL. It prints "ok". */

#include "redlock.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <type_traits>

using namespace std::chrono_literals;

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define THROWS(type, expression)                                                                   \
    do {                                                                                           \
        bool thrown = false;                                                                       \
        try {                                                                                      \
            (void)(expression);                                                                    \
        } catch (const type &error) {                                                              \
            thrown = std::string(error.what()).size() > 0;                                         \
        }                                                                                          \
        if (!thrown)                                                                               \
            fail(__LINE__, #expression " throws " #type);                                          \
    } while (0)

static void fail(int line, const char *what)
{
    std::fprintf(stderr, "capi.cpp:%d: %s\n", line, what);
    std::abort();
}

static bool is_free(const redlock::client &client, const char *name)
{
    auto lock = client.try_acquire(name, 60s);
    return lock.has_value();
}

static_assert(std::is_nothrow_move_constructible_v<redlock::lock> && !std::is_copy_constructible_v<redlock::lock>);
static_assert(std::is_nothrow_move_constructible_v<redlock::client> && !std::is_copy_constructible_v<redlock::client>);
static_assert(!std::is_move_constructible_v<redlock::mutex>);
static_assert(std::is_constructible_v<redlock::mutex, redlock::client &, std::string, std::chrono::milliseconds>);
static_assert(std::is_constructible_v<redlock::mutex, const redlock::client &, std::string, std::chrono::milliseconds>);
/* Of a temporary client it would keep a reference. */
static_assert(!std::is_constructible_v<redlock::mutex, redlock::client, std::string, std::chrono::milliseconds>);
static_assert(!std::is_constructible_v<redlock::mutex, const redlock::client, std::string, std::chrono::milliseconds>);

static void owners(redlock::client &client)
{
    {
        redlock::lock lock = client.acquire("owner", 60s);
        CHECK(lock && lock.is_valid() && lock.remaining() > 30s && lock.slot() == -1);
        lock.ensure(1s);
        THROWS(redlock::too_slow, lock.ensure(100s));
        lock.extend(120s);
        CHECK(lock.remaining() > 60s && lock.fencing_token() > 0);
        redlock::lock moved = std::move(lock);
        CHECK(!lock && moved.is_valid() && !is_free(client, "owner"));
        moved.keep_alive(1h);
        CHECK(!moved.wait_lost(1ms));
        moved.stop();
    }
    /* The destructor has released it. */
    CHECK(is_free(client, "owner"));

    redlock::lock lock = client.acquire("owner", 60s, 20s);
    lock.release();
    CHECK(!lock && is_free(client, "owner"));
    THROWS(redlock::config, lock.extend(60s));
    /* Of two threads that end it the second does not learn that it was held to this point. */
    THROWS(redlock::config, lock.release());
    THROWS(redlock::config, lock.leak());
    THROWS(redlock::config, lock.leak_for(1s));
    redlock::lock from = client.acquire("owner", 60s), to = std::move(from);
    THROWS(redlock::config, from.release());
    to.release();
    lock = client.acquire("owner", 60s);
    redlock::lock other = client.resume("owner", lock.token(), lock.remaining());
    other.release();
    /* A deleter would swallow that. */
    try {
        lock.release();
        fail(__LINE__, "it was released before");
    } catch (const redlock::lost &lost) {
        CHECK(lost.status() == REDLOCK_LOST && lost.reason() == REDLOCK_REASON_DELETED);
    }
    CHECK(!lock);
    /* One that is lost has its handle, and is not held. */
    lock = client.acquire("owner", 60s);
    client.resume("owner", lock.token(), lock.remaining()).release();
    THROWS(redlock::lost, lock.extend(60s));
    CHECK(lock.get() != nullptr && !lock);
    lock = client.acquire("owner", 60s);
    lock.leak_for(0s);
    lock = client.acquire("owner", 1s, 20s);
    lock.leak();
    client.acquire("owner", 60s, 20s).release();
}

/* A function of its lock, which must not end it. */
struct of_its_own {
    redlock::lock lock;
    std::atomic<int> refused{0};

    static void on_expiring(std::uint64_t, void *user) { ends(user); }
    static void on_lost(int, void *user) { ends(user); }

    static void ends(void *user)
    {
        auto *self = static_cast<of_its_own *>(user);
        THROWS(redlock::config, self->lock.release());
        THROWS(redlock::config, self->lock.leak());
        THROWS(redlock::config, self->lock.leak_for(1s));
        self->refused = 1;
    }
};

static void locks_that_cannot_be_ended_stay_with_their_owner(redlock::client &client)
{
    redlock_lock_t *handle;
    redlock::detail::check(redlock_acquire_reentrant(client.get(), "stays", 5, 60000, 20000, &handle));
    redlock::lock lock(handle);
    THROWS(redlock::config, lock.leak_for(1s));
    THROWS(redlock::config, lock.leak());
    std::thread([&] { THROWS(redlock::config, lock.release()); }).join();
    CHECK(lock && lock.is_valid());
    lock.release();
    CHECK(!lock && is_free(client, "stays"));

    of_its_own kept{client.acquire("stays", 60s)};
    kept.lock.keep_alive(1h);
    redlock::detail::check(redlock_lock_on_expiring(kept.lock.get(), 60000, of_its_own::on_expiring, &kept));
    for (int round = 0; round < 2000 && kept.refused == 0; round++)
        std::this_thread::sleep_for(10ms);
    CHECK(kept.refused == 1 && kept.lock && kept.lock.is_valid());
    kept.lock.release();
    CHECK(is_free(client, "stays"));

    of_its_own lost{client.acquire("stays", 3s)};
    lost.lock.keep_alive(1h);
    redlock::detail::check(redlock_lock_on_lost(lost.lock.get(), of_its_own::on_lost, &lost));
    client.resume("stays", lost.lock.token(), 3s).release();
    for (int round = 0; round < 2000 && lost.refused == 0; round++)
        std::this_thread::sleep_for(10ms);
    CHECK(lost.refused == 1 && lost.lock.get() != nullptr);
    THROWS(redlock::lost, lost.lock.release());
    CHECK(lost.lock.get() == nullptr);
}

static void other_kinds(redlock::client &client)
{
    redlock::lock one = client.acquire_permit("permits", 1, 60s, 20s);
    CHECK(one.slot() == 0);
    THROWS(redlock::busy, client.acquire_permit("permits", 1, 60s, 0s));
    redlock::lock reader = client.acquire_read("rw", 60s, 20s);
    THROWS(redlock::busy, client.acquire_write("rw", 60s, 0s));
    THROWS(redlock::other_kind, client.acquire_permit("rw", 2, 60s, 20s));
    reader.release();
    client.acquire_write("rw", 60s, 20s).release();
    redlock::lock both = client.acquire_several({"one", "two"}, 60s, 20s);
    CHECK(!is_free(client, "two"));
}

static void errors(redlock::client &client)
{
    redlock::lock lock = client.acquire("errors", 60s);
    try {
        client.acquire("errors", 60s, 200ms);
        fail(__LINE__, "it is held");
    } catch (const redlock::busy &busy) {
        CHECK(busy.status() == REDLOCK_BUSY && busy.label() == "web-3:4711");
        CHECK(busy.remaining() > 30s && busy.remaining() <= 60s);
        CHECK(busy.is_own());
    }
    int left = 3;
    THROWS(redlock::cancelled, client.acquire_while("errors", 60s, [&] { return left-- > 0; }));
    CHECK(left == -1);
    THROWS(std::logic_error, client.acquire_while("errors", 60s, []() -> bool { throw std::logic_error("mine"); }));
    lock.release();
    client.acquire_while("errors", 60s, [] { return true; }).release();
    THROWS(redlock::config, client.acquire("", 60s));
    THROWS(redlock::config, redlock::client({}));
    THROWS(redlock::config, client.set(REDLOCK_OPTION_FAIR, 2));
    THROWS(redlock::error, client.set_prefix("a b"));
    /* None is cut to its first NUL. */
    const std::string cut("redis://127.0.0.1:1\0:", 21);
    THROWS(redlock::config, client.set_prefix(std::string("a\0b:", 4)));
    THROWS(redlock::config, client.set_label(cut));
    THROWS(redlock::config, redlock::client({cut}));
    try {
        redlock::client({"redis://127.0.0.1:1"}).connect();
        fail(__LINE__, "there is no node");
    } catch (const redlock::unavailable &error) {
        CHECK(error.causes().size() == 1 && error.causes()[0].find("127.0.0.1:1") == 0);
        CHECK(!error.permanent() && error.retry_after() == 0s);
    }
    CHECK(redlock::detail::ms(redlock::forever) == UINT64_MAX && redlock::detail::ms(-1s) == 0);
    CHECK(redlock::detail::time(UINT64_MAX) == redlock::forever);
}

static void mutexes(redlock::client &client)
{
    redlock::mutex one(client, "mutex:1", 60s), two(client, "mutex:2", 60s);
    {
        std::scoped_lock both(one, two);
        CHECK(!is_free(client, "mutex:1") && !is_free(client, "mutex:2"));
        one.held().ensure(1s);
        std::thread([&] { CHECK(!one.try_lock() && !one.try_lock_for(10ms)); }).join();
        redlock::mutex elsewhere(client, "mutex:1", 60s);
        CHECK(!elsewhere.try_lock() && !elsewhere.try_lock_for(50ms));
        CHECK(!elsewhere.try_lock_until(std::chrono::system_clock::now() + 50ms));
        one.release();
        THROWS(redlock::config, one.release());
        CHECK(elsewhere.try_lock());
        elsewhere.unlock();
    }
    CHECK(is_free(client, "mutex:1") && is_free(client, "mutex:2"));

    /* Lost: release() throws, and the guard's end does not. */
    try {
        std::unique_lock guard(one, std::defer_lock);
        CHECK(guard.try_lock_for(20s) && guard.owns_lock());
        guard.unlock();
        CHECK(guard.try_lock_for(redlock::forever) && guard.owns_lock());
        client.resume("mutex:1", one.held().token(), 30s).release();
        one.release();
        fail(__LINE__, "it was lost");
    } catch (const redlock::lost &) {
    }

    /* Threads that share one, and threads with their own. */
    int inside = 0;
    std::atomic<int> times{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 6; number++)
        threads.emplace_back([&, number] {
            redlock::mutex own(client, "mutex:1", 60s);
            for (int round = 0; round < 20; round++) {
                std::unique_lock guard(number % 2 == 0 ? one : own);
                CHECK(inside++ == 0);
                std::this_thread::yield();
                inside--;
                times++;
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(times == 120);
}

int main(int argc, char **argv)
{
    redlock::client client(std::vector<std::string>(argv + 1, argv + argc));

    client.set(REDLOCK_OPTION_NODE_TIMEOUT_MS, 2000).set(REDLOCK_OPTION_WAIT_MS, 20000).set_label("web-3:4711");
    client.set_prefix("").connect();
    owners(client);
    locks_that_cannot_be_ended_stay_with_their_owner(client);
    other_kinds(client);
    errors(client);
    mutexes(client);
    std::puts("ok");
    return 0;
}
