/*
 * redlock.hpp - redlock.h for C++17: owners, exceptions, and a mutex for std::unique_lock and std::scoped_lock.
 *
 *     redlock::client client({"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"});   // one for the program
 *
 *     redlock::lock lock = client.acquire("shop:account:17", 10s);    // throws redlock::busy
 *     lock.ensure(1s);                                                // before a write: throws lost or too_slow
 *     lock.release();                                                 // LOST: it was not held to the end
 *
 * redlock.h is the manual: it describes each function, with its failures. There is nothing to link but its library. The
 * functions that have no counterpart here take client.get() and lock.get().
 *
 * A destructor releases what is still held, and cannot report that it was lost: call release() at the end of the work.
 */

#ifndef REDLOCK_HPP
#define REDLOCK_HPP

#include "redlock.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlock {

using milliseconds = std::chrono::milliseconds;

/* A wait without an end. */
inline constexpr milliseconds forever = milliseconds::max();

/* ---- exceptions ---- */

/* Any failure. what() is the text of redlock_last_error(). */
class error : public std::runtime_error {
public:
    error(int status, const std::string &what) : std::runtime_error(what), status_(status) {}

    /* The status code: REDLOCK_BUSY and so on. */
    int status() const noexcept { return status_; }

private:
    int status_;
};

/* REDLOCK_BUSY: another holder had the lock for the whole wait. */
class busy : public error {
public:
    busy(const std::string &what, std::string label, milliseconds remaining, bool own)
        : error(REDLOCK_BUSY, what), label_(std::move(label)), remaining_(remaining), own_(own)
    {
    }

    /* The holder's label. Empty: it has none, or there was a single attempt. */
    const std::string &label() const noexcept { return label_; }

    /* How long the holder has the lock at most. 0: unknown. */
    milliseconds remaining() const noexcept { return remaining_; }

    /* Whether this program itself has the lock, as far as redlock_last_is_own() finds out. */
    bool is_own() const noexcept { return own_; }

private:
    std::string label_;
    milliseconds remaining_;
    bool own_;
};

/* REDLOCK_UNAVAILABLE: too few nodes answered. */
class unavailable : public error {
public:
    unavailable(const std::string &what, std::vector<std::string> causes, bool permanent, milliseconds retry_after)
        : error(REDLOCK_UNAVAILABLE, what), causes_(std::move(causes)), permanent_(permanent), retry_after_(retry_after)
    {
    }

    /* The failed nodes, each with its error. */
    const std::vector<std::string> &causes() const noexcept { return causes_; }

    /* Whether these nodes refuse for good, so that another try is useless. */
    bool permanent() const noexcept { return permanent_; }

    /* How long it takes until enough nodes vote again after restarts. 0: unknown. */
    milliseconds retry_after() const noexcept { return retry_after_; }

private:
    std::vector<std::string> causes_;
    bool permanent_;
    milliseconds retry_after_;
};

/* REDLOCK_LOST: the lock is no longer held. */
class lost : public error {
public:
    lost(const std::string &what, int reason) : error(REDLOCK_LOST, what), reason_(reason) {}

    /* Why: REDLOCK_REASON_TAKEN and so on. */
    int reason() const noexcept { return reason_; }

private:
    int reason_;
};

/* The others have nothing but their text. */
template <int Status>
class error_of : public error {
public:
    explicit error_of(const std::string &what) : error(Status, what) {}
};

using too_slow = error_of<REDLOCK_TOO_SLOW>;
using extension_limit = error_of<REDLOCK_EXTENSION_LIMIT>;
using cancelled = error_of<REDLOCK_CANCELLED>;
using config = error_of<REDLOCK_CONFIG>;
using other_kind = error_of<REDLOCK_OTHER_KIND>;

namespace detail {

/* A text of the library, however long it is. */
template <typename Copy>
std::string text(Copy copy)
{
    std::string text(copy(nullptr, std::size_t{0}), '\0');
    /* With the NUL, for which a string has room. */
    copy(text.data(), text.size() + 1);
    return text;
}

inline milliseconds time(std::uint64_t ms)
{
    return milliseconds(static_cast<milliseconds::rep>(std::min(ms, static_cast<std::uint64_t>(forever.count()))));
}

inline std::uint64_t ms(milliseconds time)
{
    return time == forever ? UINT64_MAX : static_cast<std::uint64_t>(std::max(time, milliseconds::zero()).count());
}

/* Throws what a status code stands for. */
inline void check(int status)
{
    if (status == REDLOCK_OK)
        return;
    const std::string what = text(redlock_last_error);
    switch (status) {
    case REDLOCK_BUSY:
        throw busy(what, text(redlock_last_label), time(redlock_last_remaining_ms()),
                   redlock_last_is_own() == 1);
    case REDLOCK_LOST:
        throw lost(what, redlock_last_lost_reason());
    case REDLOCK_TOO_SLOW:
        throw too_slow(what);
    case REDLOCK_UNAVAILABLE: {
        std::vector<std::string> causes;
        const auto cause = [&](char *buf, std::size_t cap) { return redlock_last_cause(causes.size(), buf, cap); };
        while (cause(nullptr, 0) > 0)
            causes.push_back(text(cause));
        throw unavailable(what, std::move(causes), redlock_last_is_permanent() == 1, time(redlock_last_retry_after_ms()));
    }
    case REDLOCK_EXTENSION_LIMIT:
        throw extension_limit(what);
    case REDLOCK_CANCELLED:
        throw cancelled(what);
    case REDLOCK_CONFIG:
        throw config(what);
    case REDLOCK_OTHER_KIND:
        throw other_kind(what);
    default:
        throw error(status, what);
    }
}

/* A text for C, which would take one with a NUL in it to there. */
inline const char *c_text(const char *what, const std::string &text)
{
    if (text.find('\0') != std::string::npos)
        throw config(std::string(what) + " has a NUL character in it");
    return text.c_str();
}

struct free_client {
    void operator()(redlock_t *client) const noexcept { redlock_free(client); }
};

struct release_lock {
    void operator()(redlock_lock_t *lock) const noexcept { redlock_lock_release(lock); }
};

/* The names of a lock on several of them, as C wants them. */
struct names {
    explicit names(const std::vector<std::string> &all)
    {
        for (const std::string &name : all) {
            data.push_back(name.data());
            sizes.push_back(name.size());
        }
    }

    std::vector<const void *> data;
    std::vector<std::size_t> sizes;
};

} // namespace detail

/* ---- a lock that is held ---- */

/* Owns a redlock_lock_t. It can be moved, and used by several threads at once. */
class lock {
public:
    /* Takes over a handle. */
    explicit lock(redlock_lock_t *handle = nullptr) noexcept : handle_(handle) {}

    redlock_lock_t *get() const noexcept { return handle_.get(); }

    /* Whether it is held, as for std::unique_lock: is_valid(). Not after release(), leak() and a move, nor once it is lost. */
    explicit operator bool() const noexcept { return is_valid(); }

    bool is_valid() const noexcept { return redlock_lock_is_valid(get()) == 1; }
    milliseconds remaining() const noexcept { return detail::time(redlock_lock_remaining_ms(get())); }
    std::int64_t slot() const noexcept { return redlock_lock_slot(get()); }

    /* Throws lost if it is over, too_slow if less is left. */
    void ensure(milliseconds at_least) const { detail::check(redlock_lock_ensure(get(), detail::ms(at_least))); }

    void extend(milliseconds ttl) { detail::check(redlock_lock_extend(get(), detail::ms(ttl))); }
    void keep_alive(milliseconds max_hold) { detail::check(redlock_lock_keep_alive(get(), detail::ms(max_hold))); }
    void stop() { detail::check(redlock_lock_stop(get())); }

    /* Waits until a lock that is kept alive is lost. False: it was still held after the timeout. */
    bool wait_lost(milliseconds timeout) const
    {
        const int status = redlock_lock_wait_lost(get(), detail::ms(timeout));
        if (status == REDLOCK_LOST)
            return true;
        detail::check(status);
        return false;
    }

    std::uint64_t fencing_token() const
    {
        std::uint64_t number;
        detail::check(redlock_lock_fencing_token(get(), &number));
        return number;
    }

    /* A secret, for client::resume() in another process. */
    std::array<std::uint8_t, REDLOCK_TOKEN_SIZE> token() const noexcept
    {
        std::array<std::uint8_t, REDLOCK_TOKEN_SIZE> bytes{};
        redlock_lock_token(get(), bytes.data(), bytes.size());
        return bytes;
    }

    /* Releases it, and throws lost if it was not held to this point, unavailable if too few nodes confirmed; config, as
       all functions of a lock that throw, if it was ended or moved from before. */
    void release() { detail::check(ended(redlock_lock_release(owned()))); }

    /* Leaves it to its ttl, or for so long. */
    void leak() { detail::check(ended(redlock_lock_leak(owned()))); }
    void leak_for(milliseconds time) { detail::check(ended(redlock_lock_leak_for(owned(), detail::ms(time)))); }

private:
    /* C ends NULL with OK, which reads as "held to this point". */
    redlock_lock_t *owned() const
    {
        if (!handle_)
            throw config("this lock was released, left or moved from before");
        return get();
    }

    /* Forgets the handle, unless C has not freed it: a reentrant lock in another thread, or any lock in one of its
       functions. */
    int ended(int status) noexcept
    {
        if (status != REDLOCK_CONFIG)
            (void)handle_.release();
        return status;
    }

    std::unique_ptr<redlock_lock_t, detail::release_lock> handle_;
};

/* ---- the client object ---- */

/* Owns a redlock_t. It can be used by several threads at once. */
class client {
public:
    explicit client(const std::vector<std::string> &urls)
    {
        std::vector<const char *> texts;
        for (const std::string &url : urls)
            texts.push_back(detail::c_text("a URL", url));
        redlock_t *made;
        detail::check(redlock_new(texts.data(), texts.size(), &made));
        handle_.reset(made);
    }

    redlock_t *get() const noexcept { return handle_.get(); }

    /* REDLOCK_OPTION_FAIR and so on. */
    client &set(int option, std::uint64_t value)
    {
        detail::check(redlock_set(get(), option, value));
        return *this;
    }
    client &set_label(const std::string &label)
    {
        detail::check(redlock_set_label(get(), detail::c_text("the label", label)));
        return *this;
    }
    client &set_prefix(const std::string &prefix)
    {
        detail::check(redlock_set_prefix(get(), detail::c_text("the prefix", prefix)));
        return *this;
    }

    void connect() const { detail::check(redlock_connect(get())); }

    /* Waits for REDLOCK_OPTION_WAIT_MS, or for `wait`. */
    lock acquire(std::string_view name, milliseconds ttl) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_acquire(get(), name.data(), name.size(), detail::ms(ttl), out);
        });
    }
    lock acquire(std::string_view name, milliseconds ttl, milliseconds wait) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_acquire_within(get(), name.data(), name.size(), detail::ms(ttl), detail::ms(wait), out);
        });
    }

    /* One attempt. Nothing: another holder has it. */
    std::optional<lock> try_acquire(std::string_view name, milliseconds ttl) const
    {
        redlock_lock_t *handle;
        const int status = redlock_try_acquire(get(), name.data(), name.size(), detail::ms(ttl), &handle);
        if (status == REDLOCK_BUSY)
            return std::nullopt;
        detail::check(status);
        return lock(handle);
    }

    /* Waits until keep_trying() returns false: then it throws cancelled. */
    template <typename KeepTrying>
    lock acquire_while(std::string_view name, milliseconds ttl, KeepTrying keep_trying) const
    {
        struct asked {
            KeepTrying *keep_trying;
            std::exception_ptr thrown;
        } asked{&keep_trying, nullptr};
        /* No exception may pass the library. */
        const auto ask = [](void *user) -> int {
            auto *self = static_cast<struct asked *>(user);
            try {
                return (*self->keep_trying)() ? 1 : 0;
            } catch (...) {
                self->thrown = std::current_exception();
                return 0;
            }
        };
        redlock_lock_t *handle;
        const int status =
            redlock_acquire_while(get(), name.data(), name.size(), detail::ms(ttl), ask, &asked, &handle);
        lock held(handle);
        if (asked.thrown)
            std::rethrow_exception(asked.thrown);
        detail::check(status);
        return held;
    }

    lock acquire_permit(std::string_view name, std::uint32_t permits, milliseconds ttl, milliseconds wait) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_acquire_permit(get(), name.data(), name.size(), permits, detail::ms(ttl), detail::ms(wait), out);
        });
    }
    lock acquire_read(std::string_view name, milliseconds ttl, milliseconds wait) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_acquire_read(get(), name.data(), name.size(), detail::ms(ttl), detail::ms(wait), out);
        });
    }
    lock acquire_write(std::string_view name, milliseconds ttl, milliseconds wait) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_acquire_write(get(), name.data(), name.size(), detail::ms(ttl), detail::ms(wait), out);
        });
    }
    lock acquire_several(const std::vector<std::string> &names, milliseconds ttl, milliseconds wait) const
    {
        const detail::names all(names);
        return made([&](redlock_lock_t **out) {
            return redlock_acquire_several(get(), all.data.data(), all.sizes.data(), names.size(), detail::ms(ttl),
                                           detail::ms(wait), out);
        });
    }

    /* Takes over a lock that another process hands over. */
    lock resume(std::string_view name, const std::array<std::uint8_t, REDLOCK_TOKEN_SIZE> &token,
                milliseconds validity) const
    {
        return made([&](redlock_lock_t **out) {
            return redlock_resume(get(), name.data(), name.size(), token.data(), detail::ms(validity), out);
        });
    }

private:
    template <typename Make>
    static lock made(Make make)
    {
        redlock_lock_t *handle;
        detail::check(make(&handle));
        return lock(handle);
    }

    std::unique_ptr<redlock_t, detail::free_client> handle_;
};

/* ---- a mutex ---- */

/* A lock under one name, for std::unique_lock, std::scoped_lock and std::lock. In this process it is a std::timed_mutex as well:
   threads that share the object wait for each other, and the thread that has locked it unlocks it. The client must live as long.

       redlock::mutex account(client, "shop:account:17", 10s);
       std::scoped_lock guard(account);
       account.held().ensure(1s);   // before a write
       account.release();           // at the end of the work: throws lost

   It is a lease all the same: it can be lost while it is locked. */
class mutex {
public:
    mutex(const client &client, std::string name, milliseconds ttl) : client_(client), name_(std::move(name)), ttl_(ttl)
    {
    }
    /* A temporary client would be gone before the first lock. */
    mutex(const client &&, std::string, milliseconds) = delete;
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;

    /* Waits without an end; throws what acquiring throws, such as unavailable if nodes refuse for good. */
    void lock()
    {
        std::unique_lock<std::timed_mutex> here(here_);
        held_ = client_.acquire(name_, ttl_, forever);
        here.release();
    }

    bool try_lock()
    {
        std::unique_lock<std::timed_mutex> here(here_, std::try_to_lock);
        return here && take(here, milliseconds::zero());
    }

    template <typename Rep, typename Period>
    bool try_lock_for(const std::chrono::duration<Rep, Period> &time)
    {
        using clock = std::chrono::steady_clock;
        const auto now = clock::now();
        // A time that the clock never reaches, such as forever.
        if (std::chrono::duration<double>(time) >= std::chrono::duration<double>(clock::time_point::max() - now)) {
            std::unique_lock<std::timed_mutex> here(here_);
            return take(here, forever);
        }
        return try_lock_until(now + time);
    }

    template <typename Clock, typename Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &end)
    {
        std::unique_lock<std::timed_mutex> here(here_, end);
        return here && take(here, std::chrono::duration_cast<milliseconds>(end - Clock::now()));
    }

    /* Releases it if it is still held. It reports nothing, since std::unique_lock calls it in its destructor. */
    void unlock() noexcept
    {
        held_ = redlock::lock();
        here_.unlock();
    }

    /* Releases the lock, and throws lost if it was not held to this point, config if it is not locked. The mutex stays
       locked in this process until unlock(), which std::unique_lock and std::scoped_lock call. */
    void release() { held_.release(); }

    /* The lock that is held, for the thread that has locked the mutex. */
    redlock::lock &held() noexcept { return held_; }

private:
    bool take(std::unique_lock<std::timed_mutex> &here, milliseconds wait)
    {
        try {
            held_ = client_.acquire(name_, ttl_, std::max(wait, milliseconds::zero()));
        } catch (const busy &) {
            return false;
        }
        here.release();
        return true;
    }

    const client &client_;
    const std::string name_;
    const milliseconds ttl_;
    std::timed_mutex here_;
    redlock::lock held_;
};

} // namespace redlock

#endif
