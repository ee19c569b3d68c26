-- Permits and read locks: how each of their scripts begins.
--
-- KEYS[1]  the lock: a sorted set with a member for each holder: "redlock:", then "s" and the three digits of a permit's
--          slot, or "r000" for a reader; then the token (20 bytes), and what is behind it. The score is the last millisecond
--          in which the holder has it, by this server's clock. The key ends with the last holder, so a set without a
--          living one is gone by itself.
--
-- Other data under this name is never touched.

local name = KEYS[1]
-- The key's time is read before the clock: if this script is held up in between, members last longer, not shorter.
local left = redis.call('PTTL', name)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- What is under the name: "none", "s", "r", or another type.
local found = redis.call('TYPE', name).ok
if found == 'zset' then
  found = string.match(redis.call('ZRANGE', name, 0, 0)[1], '^redlock:([rs])%d%d%d') or found
end
-- A member without a whole token was damaged by hand, and holds nothing.
local function head(member)
  return #member >= 32 and string.match(member, '^redlock:([rs]%d%d%d)')
end
-- The end of the last holder. One that was set by hand may be no time. (A server whose slot is on its way refuses to
-- look at a key whose last member was removed.)
local function last()
  local at, one = 0, nil
  repeat
    at = at - 1
    one = redis.pcall('ZRANGE', name, at, at, 'WITHSCORES')
  until not one[1] or head(one[1]) and one[2] + 0 < 2 ^ 53
  return one[2] and string.format('%.0f', one[2])
end
-- Returns an error, if there is one.
local function set_end()
  local score = last()
  local set = score and redis.pcall('PEXPIREAT', name, score)
  return type(set) == 'table' and set or nil
end
local final = (found == 's' or found == 'r') and last() or now + left
-- Before a member goes: without the right to set it, the end of the key would stay that of the member that is gone.
-- (An end that is over would delete the key.)
local function try_set_end()
  redis.call('PEXPIREAT', name, string.format('%.0f', math.max(final, now) + 1))
end
if found == 's' or found == 'r' then
  -- A slot of a Redis Cluster moves with the times that are left of its keys, and with the scores as they are. So the
  -- key shows by how much this server's clock is ahead of that of the server which set the scores; they follow (rule
  -- R49a). Where it is behind, the end of the key follows the scores. No score is lowered, and no holder ends earlier: a
  -- score that was changed by hand looks the same.
  local ahead = now + left - final
  if left >= 0 and math.abs(ahead) > 1 then
    -- This write comes first, as a server without memory refuses ZADD only if no write came before it.
    redis.call('ZREMRANGEBYSCORE', name, '-inf', '(0')
    local all = ahead > 0 and redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') or {}
    for i = 1, #all, 2 do
      redis.call('ZADD', name, string.format('%.0f', all[i + 1] + ahead), all[i])
    end
    final = final + math.max(ahead, 0)
    set_end()
  end
  redis.call('ZREMRANGEBYSCORE', name, '-inf', '(' .. string.format('%.0f', now))
end
-- All members, in any order.
local function members()
  return (found == 's' or found == 'r') and redis.call('ZRANGE', name, 0, -1) or {}
end
-- The member of a token. It is `guess`, unless another process acquired it.
local function find(token, guess)
  if (found == 's' or found == 'r') and redis.call('ZSCORE', name, guess) then
    return guess
  end
  for _, member in ipairs(members()) do
    if head(member) and string.sub(member, 13, 32) == token then
      return member
    end
  end
end
-- What is in the place of a member that is gone: -1 another holder, -2 none, 0 its place is not known.
local function instead(member)
  local wanted = head(member)
  if not wanted then
    return 0
  end
  if found ~= 'none' and found ~= string.sub(wanted, 1, 1) then
    return -1
  end
  for _, other in ipairs(found == 's' and members() or {}) do
    if head(other) == wanted then
      return -1
    end
  end
  return -2
end
-- What extending and releasing need: a user without these rights is refused before anything is written.
-- (A server without memory refuses no command behind another one that writes: so the one that needs memory comes first.)
local function try_release()
  redis.call('ZADD', name, 'XX', 0, 'redlock:')
  redis.call('ZREMRANGEBYSCORE', name, '-inf', '(0')
  redis.call('ZSCORE', name, 'redlock:')
  if found == 'none' then
    redis.call('ZRANGE', name, 0, 0)
  end
  redis.call('ZREM', name, 'redlock:')
end
-- A member exists for this number of ms from now on. `before`: its score, if it has one. Returns an error, if there is
-- one: then all is as it was, and nothing stays for ever.
local function put(member, ttl, before)
  local added = redis.call('ZADD', name, string.format('%.0f', now + ttl), member)
  local failed = set_end()
  if failed and before then
    redis.pcall('ZADD', name, before, member)
  elseif failed and added == 1 then
    redis.pcall('ZREM', name, member)
    if redis.call('PTTL', name) == -1 then
      redis.call('DEL', name)
    end
  end
  return failed
end
