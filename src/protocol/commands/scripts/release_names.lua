-- Compare and delete those that the token holds, and notify a waiter of each.
--
-- KEYS     the names; then, if waiters are notified, the queue of each, and then the mark of each
-- ARGV[1]  the token
-- ARGV[2]  the number of names
-- ARGV[3]  optional: a channel that is not notified
-- ARGV[4]  the writer in the mark that is deleted, or nothing
--
-- Returns 0 if the token did not hold all of them, 1 if they have been deleted, 2 if a waiter has been notified, too.

local count, deleted, result = tonumber(ARGV[2]), 0, 1
for i = 1, count do
  local mark = KEYS[2 * count + i] and try('GET', KEYS[2 * count + i])
  if type(mark) == 'string' and string.match(mark, '^%d+ (%x+) ') == ARGV[4] then
    try('DEL', KEYS[2 * count + i])
  end
  if holds(KEYS[i]) then
    redis.call('DEL', KEYS[i])
    deleted = deleted + 1
    result = math.max(result, tell(KEYS[count + i], KEYS[i], me))
  end
end
return deleted == count and result or 0
