-- Leave the queues. Where a name is not held by one alone, pass the notification on to the first waiter that listens.
--
-- KEYS     the names; then the queue of each, and then the mark of each; the last two may be missing
-- ARGV[1]  the number of names
-- ARGV[2]  the writer in the mark that is deleted, or nothing
-- ARGV[3]  the waiter that leaves, as in the queue
--
-- Returns 2 if a waiter has been notified, else 1.

local count, result = tonumber(ARGV[1]), 1
for i = 1, count do
  try('ZREM', KEYS[count + i], me)
  local mark = KEYS[2 * count + i] and try('GET', KEYS[2 * count + i])
  if type(mark) == 'string' and string.match(mark, '^%d+ (%x+) ') == ARGV[2] then
    try('DEL', KEYS[2 * count + i])
  end
  if type(try('GET', KEYS[i])) ~= 'string' then
    result = math.max(result, tell(KEYS[count + i], KEYS[i]))
  end
end
return result
