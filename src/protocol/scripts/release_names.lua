-- Compare and delete those that the token holds, and notify a waiter of each.
--
-- KEYS     the names; then, if waiters are notified, the queue of each, and then the mark of each
-- ARGV[1]  the token
-- ARGV[2]  the number of names
-- ARGV[3]  the writer in the mark that is deleted, or nothing
--
-- Returns 0 if the token did not hold all of them, 1 if they have been deleted, 2 if a waiter has been notified, too.

local count, deleted, result, try = tonumber(ARGV[2]), 0, 1, redis.pcall
local notifies = #KEYS > count
for i = 1, count do
  local mark = notifies and try('GET', KEYS[2 * count + i])
  if type(mark) == 'string' and string.match(mark, '^%d+ (.+)$') == ARGV[3] then
    try('DEL', KEYS[2 * count + i])
  end
  if holds(KEYS[i]) then
    redis.call('DEL', KEYS[i])
    deleted = deleted + 1
    for _ = 1, notifies and 99 or 0 do
      local waiter = try('ZPOPMIN', KEYS[count + i])[1]
      if not waiter then
        break
      end
      local heard = try('PUBLISH', waiter, KEYS[i])
      if heard ~= 0 then
        result = type(heard) == 'number' and 2 or result
        break
      end
    end
  end
end
return deleted == count and result or 0
