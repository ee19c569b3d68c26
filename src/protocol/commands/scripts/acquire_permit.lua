-- Acquire a permit (rule R47): the first slot that is free, from the preferred one upwards.
--
-- KEYS[2]  optional: the queue
-- ARGV[1]  its value
-- ARGV[2]  the ttl in ms
-- ARGV[7]  the number of permits
-- ARGV[8]  the slot that is preferred
--
-- Returns 1 + the slot. If none is free, three words as lock_info: for how many ms the first permit is held, six digits that
-- differ where the holders differ, and whether the waiter is in the queue. Where the name is in other use: -1 a lock, -2
-- read locks, -4 other data.

if found ~= 'none' and found ~= 's' then
  return found == 'string' and -1 or found == 'r' and -2 or -4
end
local taken, sum = {}, 0
for _, member in ipairs(members()) do
  if head(member) then
    local a, b, c = string.byte(member, 13, 15)
    taken[tonumber(string.sub(member, 10, 12))], sum = true, (sum + a * 65536 + b * 256 + c) % 16777216
  end
end
try_release()
for i = 0, ARGV[7] - 1 do
  local slot = (ARGV[8] + i) % ARGV[7]
  if not taken[slot] then
    try('ZREM', queue, me)
    return put(string.format('redlock:s%03d', slot) .. ARGV[1], ARGV[2]) or slot + 1
  end
end
local first = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')[2]
return string.format('%.0f %06x', math.max(first - now, 0), sum) .. join()
