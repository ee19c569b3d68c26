-- Acquire, or enter the queue: two scripts, each made of four parts.
--
--   ACQUIRE_OR_ENQUEUE  queue, acquire, enqueue, lock_info            Acquire, or enter the queue.
--   ACQUIRE_IN_ORDER    queue, enqueue, acquire_in_order, lock_info   Enter the queue, and acquire only in order (fair).
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue, a sorted set of waiters: of each the channel; behind a space its label, if it has one
-- KEYS[3]  the reservation, which holds the channel that was notified last
-- ARGV[1]  its value: the token (20 bytes), and what is behind it
-- ARGV[2]  its ttl in ms
-- ARGV[3]  the waiter, as in the queue
-- ARGV[4]  when the waiter arrived, by its wall clock, in ms since 1970
-- ARGV[5]  how long it has waited, in ms
-- ARGV[6]  how long the queue is kept, in ms
-- ARGV[7]  ACQUIRE_IN_ORDER only: for how many ms the lock is reserved for a waiter that is notified
--
-- Returns OK if the lock has been acquired. Otherwise three words (lock_info, acquire_in_order): for how many ms it is held or
-- reserved, its holder, and whether the waiter is in the queue (w); and the holder's label, if it has one.
--
-- Queue and reservation are hints, so with them pcall is used: an error (an ACL, data of another type) does not fail the
-- acquire. Without KEYS[2] and KEYS[3] every such call is an error, and there is no queue.

local try, lock, me = redis.pcall, KEYS[1], ARGV[3]
local queue, turn, channel = KEYS[2], KEYS[3], string.match(me, '^[^ ]*')
