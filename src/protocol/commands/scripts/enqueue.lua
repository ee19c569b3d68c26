-- Enter the queue, or keep the place in it. Waiters are ordered by arrival: by their own clocks, so that all nodes agree;
-- but by the node's clock if the two differ by more than half a second.

local score, t = tonumber(ARGV[4]), try('TIME')
if t[1] then
  local arrived = t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[5]
  if math.abs(score - arrived) > 500 then
    score = arrived
  end
end
local queued = ' -'
-- Foreign data in the place of the queue keeps its ttl: it may be another lock.
if type(try('ZADD', queue, string.format('%.0f', score), me)) == 'number' then
  try('PEXPIRE', queue, ARGV[6])
  queued = ' w'
end
