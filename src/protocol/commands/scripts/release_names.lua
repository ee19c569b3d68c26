-- Compare and delete those that the token holds, and notify a waiter of each.
--
-- KEYS     the names; then, if waiters are notified, the queue of each, and then the mark of each
-- ARGV[1]  the token
-- ARGV[2]  the number of names
-- ARGV[3]  optional: a channel that is not notified
-- ARGV[4]  the writer in the mark that is deleted, or nothing
--
-- Returns 1 if they have been deleted, 2 if a waiter has been notified, too. If the token did not hold all of them: -1 another
-- has one of them, -2 those are gone.

local count, lost, result = tonumber(ARGV[2]), nil, 1
for i = 1, count do
  local mark = KEYS[2 * count + i] and try('GET', KEYS[2 * count + i])
  if type(mark) == 'string' and string.match(mark, '^%d+ (%x+) ') == ARGV[4] then
    try('DEL', KEYS[2 * count + i])
  end
  if holds(KEYS[i]) then
    redis.call('DEL', KEYS[i])
    result = math.max(result, tell(KEYS[count + i], KEYS[i], me))
  else
    lost = math.max(lost or -2, instead(KEYS[i]))
  end
end
return lost or result
