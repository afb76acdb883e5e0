-- Inspects several locks, and changes nothing but the index, from which it removes locks that are not used any more.
--
-- ARGV[1]: a JSON array: the index; a token, or an empty string; the type of a lock's key by the recipe; and for each lock
-- its key, the suffix of its side keys, and how many of its holders and of its waiters to skip. ARGV[2] is present if the
-- slot of the lock may still be migrating to this node of a Redis Cluster.
--
-- Returns the time, and for each lock, until the reply is too long: the type of its key, or `none`; the mode; the slots;
-- the remaining lease; the digest of a foreign value; how many holders have been read, and their number; the same of the
-- waiters; then for each holder its record, its remaining lease, its slot, whether it has the token, and its revocation;
-- and for each waiter its mode, its slots, its number in the queue, and its identity.
--
-- If the index is an empty string, the history is read instead. After the token stand a list and how many of its outcomes
-- to skip; returns how many have been read, how many there can be, and those that are not too long.
local given = cjson.decode(ARGV[1])
local index, token, own = given[1], given[2], given[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The maximum number of bytes of stored values in the reply, approximately.
local budget = 60000
-- Longer values were not stored by dlock. For values larger than `largest` no digest is computed.
local longest, largest = 8192, 1048576

if index == '' then
  local list, seen, of = given[3], given[4], 20
  local outcomes = {}
  while seen < of and budget > 0 do
    local found = redis.pcall('LRANGE', list, seen, seen)
    if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
      return found
    end
    local outcome = found[1]
    seen = outcome and seen + 1 or of
    if outcome and string.len(outcome) <= longest then
      budget = budget - string.len(outcome)
      outcomes[#outcomes + 1] = outcome
    end
  end
  return {seen, of, outcomes}
end

local function text_of(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'string' or string.len(text) > longest then
    return ''
  end
  budget = budget - string.len(text)
  return text
end

local function look(lock, tail, holders_from, waiters_from)
  -- A token is short, but the value of another program can be data of any size. For a user without permission for STRLEN
  -- it is read whatever its length. A key that is not a string, or does not exist, has another type.
  local length = redis.pcall('STRLEN', lock)
  local known = type(length) == 'number'
  local kind = known and length > 0 and 'string' or redis.call('TYPE', lock).ok
  local text = kind == 'string' and not (known and length > largest) and redis.call('GET', lock)
  local value = kind == own and text
  if kind == 'hash' then
    if redis.call('HEXISTS', lock, 'mode') == 1 then
      kind = 'rwlock'
    elseif own == 'hash' and redis.call('HLEN', lock) == 1 then
      value = redis.call('HGETALL', lock)[1]
    end
  end
  local rest = kind == 'none' and -2 or redis.call('PTTL', lock)
  local mode, slots, digest = '', 0, ''
  local holders, held, of_held = {}, holders_from, 0
  local noted = value and redis.pcall('HGETALL', 'dlock#holder:' .. tail) or {}
  if noted.err and string.find(noted.err, 'non local', 1, true) then
    -- The slot of the lock is migrating to another node, and this key has been moved already.
    error(noted.err)
  end
  local fields = {}
  for i = 1, noted.err and 0 or #noted, 2 do
    fields[noted[i]] = noted[i + 1]
  end
  if ARGV[2] and kind ~= 'none' and not (value and fields.value == value) then
    -- Other keys of the lock may still be on the node that they migrate from.
    error('TRYAGAIN')
  end
  if value and fields.value == value then
    if fields.format ~= (fields.mode == 'x' and '1' or '2') then
      mode = '?'
    else
      mode, slots = string.sub(fields.mode or '', 1, 1), tonumber(fields.slots) or 0
      local members = 'dlock#member:' .. tail .. ':'
      for i = 1, #noted, 2 do
        if string.sub(noted[i], 1, 2) == 'm:' then
          of_held = of_held + 1
          if of_held > held and budget > 0 then
            held = of_held
            local id = string.sub(noted[i], 3)
            local left = redis.call('PTTL', members .. id)
            if left == -2 and ARGV[2] then
              error('TRYAGAIN')
            end
            if left ~= -2 then
              left = left == -1 and rest or left
              local told = fields['r:' .. id]
              told = told and (string.len(told) <= longest and told or '')
              budget = budget - 200 - string.len(told or '')
              local slot = string.sub(noted[i + 1], 1, 10)
              holders[#holders + 1] = {text_of(members .. id), left, slot, id == token and 1 or 0, told}
            end
          end
        end
      end
    end
  end
  if kind ~= 'none' and mode == '' then
    local size = redis.pcall('MEMORY', 'USAGE', lock)
    local foreign = text or not (type(size) == 'number' and size > largest) and redis.pcall('DUMP', lock)
    digest = type(foreign) == 'string' and redis.sha1hex(foreign) or ''
  end
  local queue = 'dlock#queue:' .. tail
  local line, seen, of_line = {}, waiters_from, redis.pcall('ZCARD', queue)
  of_line = type(of_line) == 'number' and of_line or 0
  if of_line > seen then
    local ids = redis.call('ZRANGE', queue, seen, seen + 199, 'WITHSCORES')
    for i = 1, #ids, 2 do
      if budget <= 0 then
        break
      end
      seen = seen + 1
      local text = redis.pcall('HGET', 'dlock#waiters:' .. tail, ids[i])
      if type(text) == 'string' and string.len(text) <= longest then
        local m, of, ends, who = string.match(text, '^(%a) (%d+) %d (%d+) %d+ (.*)$')
        if m and tonumber(ends) >= now then
          budget = budget - string.len(who) - 100
          line[#line + 1] = {m, tonumber(of), ids[i + 1], who}
        end
      end
    end
  end
  if kind == 'none' and of_line == 0 then
    redis.pcall('ZREM', index, lock)
  end
  return {kind, mode, slots, rest, digest, held, of_held, seen, of_line, holders, line}
end

local found = {string.format('%.0f', now)}
for i = 4, #given, 4 do
  if budget <= 0 then
    break
  end
  budget = budget - 100
  found[#found + 1] = look(given[i], given[i + 1], given[i + 2], given[i + 3])
end
return found
