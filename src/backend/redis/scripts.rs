//! The scripts. Each is one atomic step. `KEYS`: the lock, its holder hash, its fencing counter. They are sent whole
//! (`EVAL`, not `EVALSHA`): a server that has forgotten them (`SCRIPT FLUSH`, a fail-over) costs no second flight.
//!
//! Every script ends by reading the lock's key, because with client tracking on, that read is what makes the server
//! tell us when somebody else touches it.

/// `ARGV`: token, lease in ms, identity as JSON, life of the counter in ms.
///
/// A value equal to the token is our own earlier attempt whose reply was lost. Numbers of 16 digits are formatted by
/// hand: Lua would write them as `1.7e+15`. The server's time is only a seed of the counter, and the age of a holder.
/// Answers -2 when the counter has no next value below 2^53. The lock is set last: what fails before (a right that is
/// missing, no memory) has taken nothing.
pub const ACQUIRE: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  return {0, redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok, false, false}
end
if value == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  redis.call('GET', KEYS[1])
  return {1, redis.call('HGET', KEYS[2], 'fencing'), tonumber(ARGV[2])}
end
if value then
  local holder = redis.pcall('HMGET', KEYS[2], 'token', 'identity', 'at')
  if holder[1] ~= value or string.len(holder[2] or '') > 8192 then
    holder = {false, false, false}
  end
  local age = tonumber(holder[3])
  return {0, redis.call('PTTL', KEYS[1]), 'string', holder[2], age and now - age or false}
end
local last = tonumber(redis.call('GET', KEYS[3]) or 0)
if not last or last ~= last or last < 0 then
  last = 0
end
local fencing = math.max(math.floor(last) + 1, time[1] * 1000000 + time[2])
if fencing >= 9007199254740992 then
  return {-2}
end
fencing = string.format('%.0f', fencing)
redis.call('SET', KEYS[3], fencing, 'PX', ARGV[4])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'format', 1, 'token', ARGV[1], 'fencing', fencing, 'identity', ARGV[3], 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('GET', KEYS[1])
return {1, fencing, tonumber(ARGV[2])}
";

/// `ARGV`: token, lease in ms. Answers 1: extended, 0: gone, -1: somebody else's. Never creates the key anew, and uses
/// no command that is refused when the server is out of memory. An expiry that somebody removed or shortened is put
/// back.
pub const RENEW: &str = r"
local value = redis.pcall('GET', KEYS[1])
if value == false then
  return {0}
end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
if value ~= ARGV[1] then
  return {-1}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('GET', KEYS[1])
return {1}
";

/// `ARGV`: token. Answers 1: deleted, 0: gone, -1: somebody else's.
pub const RELEASE: &str = r"
local value = redis.pcall('GET', KEYS[1])
if value == false then
  return {0}
end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
if value ~= ARGV[1] then
  return {-1}
end
redis.call('DEL', KEYS[1], KEYS[2])
return {1}
";
