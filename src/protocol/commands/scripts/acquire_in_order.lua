-- ACQUIRE_IN_ORDER: acquire, if the lock is reserved for this waiter, or is not reserved and this waiter is the first that
-- listens. Otherwise the lock is reserved: the answer is for how long. A waiter that gets a reservation is notified.
--
-- If the queue cannot be used, or no waiter can be notified, every waiter may acquire. A foreign value in the place of the
-- reservation is neither believed nor touched: it may be another lock.

if try('GET', lock) == false then
  local owner = channel
  if queued == ' w' then
    owner = try('GET', turn)
    if type(owner) ~= 'string' or not string.find(owner, '^[^%z]*redlock:%x+$') then
      for i = 1, 99 do
        local first = try('ZRANGE', queue, 0, 0)[1] or me
        owner = string.match(first, '^[^ ]*')
        if owner == channel then
          break
        end
        try('ZREM', queue, first)
        local n = try('PUBLISH', owner, lock)
        if type(n) ~= 'number' then
          owner = channel
          break
        end
        -- With 0 that waiter has gone.
        if n ~= 0 then
          try('SET', turn, owner, 'NX', 'PX', ARGV[7])
          break
        end
      end
    end
  end
  if owner ~= channel then
    local left = try('PTTL', turn)
    return (type(left) == 'number' and math.max(left, 0) or 0) .. ' -' .. queued
  end
  if try('GET', turn) == channel then
    try('DEL', turn)
  end
  try('ZREM', queue, me)
  if redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2]) then
    return redis.status_reply('OK')
  end
end
