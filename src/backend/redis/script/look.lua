-- Inspects several locks, and changes nothing but the index, from which it removes locks that are not used any more.
--
-- ARGV[1]: the request, a JSON object with the fields of inspect/view.rs, where those of the reply are too. ARGV[2] is
-- present if the slot of the lock may still be migrating to this node of a Redis Cluster. The reply ends before it is too
-- long; the next request continues where it ended.
local request = cjson.decode(ARGV[1])
local index, own = request.index, request.own_type
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The maximum number of bytes of stored values in the reply, approximately.
local budget = 60000
-- Takes a text, as it is written in the reply, out of the budget.
local function spend(text)
  budget = budget - string.len(cjson.encode(text))
end
-- Longer values were not stored by dlock. For values larger than `largest` no digest is computed.
local longest, largest = 8192, 1048576

local function text_of(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'string' or string.len(text) > longest then
    return ''
  end
  spend(text)
  return text
end

-- The freeze of a lock, and whether it may be on another node: the slot of the lock migrates.
local function freeze_of(tail, is_marked)
  local freeze, is_elsewhere = redis.pcall('GET', 'dlock#frozen:' .. tail), nil
  if type(freeze) == 'table' and string.find(freeze.err, 'non local', 1, true) then
    -- This key has been moved already, or has never existed.
    local format = redis.pcall('HGET', 'dlock#waiters:' .. tail, 'format')
    if is_marked or format == '2' then
      error(freeze.err)
    end
    is_elsewhere = type(format) == 'table' or nil
  elseif not freeze and ARGV[2] then
    if is_marked then
      error('TRYAGAIN')
    end
    -- It may still be on the node that the keys migrate from.
    is_elsewhere = true
  end
  freeze = type(freeze) == 'string' and string.len(freeze) <= longest and freeze or nil
  spend(freeze or '')
  return freeze, is_elsewhere
end

-- The holders of a lock in `noted`, the fields of its hash in order, of which `held` have been seen: what is said of the
-- next ones, how many have been seen then, and how many there are. `rest` is the remaining lease of the lock.
local function holders_of(tail, noted, fields, held, mode, rest)
  local holders, of_held, members = {}, 0, 'dlock#member:' .. tail .. ':'
  for i = 1, #noted, 2 do
    local id = string.match(noted[i], '^m:(.*)$')
    of_held = id and of_held + 1 or of_held
    if id and of_held > held and budget > 0 then
      held = of_held
      local left = redis.call('PTTL', members .. id)
      if left == -2 and ARGV[2] then
        error('TRYAGAIN')
      end
      if left ~= -2 then
        left = left == -1 and rest or left
        local revocation = fields['r:' .. id]
        revocation = revocation and (string.len(revocation) <= longest and revocation or '')
        spend(revocation or '')
        budget = budget - 200
        holders[#holders + 1] = {
          record = text_of(members .. id), remaining = left, slot = mode == 'c' and string.sub(noted[i + 1], 1, 10) or '',
          is_ours = id == request.token, revocation = revocation or nil
        }
      end
    end
  end
  return holders, held, of_held
end

-- The waiters for a lock, of which `seen` have been seen: what is said of the next ones, how many have been seen then, and
-- how many there are.
local function waiters_of(tail, seen)
  local queue = 'dlock#queue:' .. tail
  local waiters, of_queue = {}, redis.pcall('ZCARD', queue)
  of_queue = type(of_queue) == 'number' and of_queue or 0
  local ids = of_queue > seen and redis.call('ZRANGE', queue, seen, seen + 199, 'WITHSCORES') or {}
  for i = 1, #ids, 2 do
    if budget <= 0 then
      break
    end
    seen = seen + 1
    local text = redis.pcall('HGET', 'dlock#waiters:' .. tail, ids[i])
    if type(text) == 'string' and string.len(text) <= longest then
      local m, of, ends, who = string.match(text, '^(%a) (%d+) %d (%d+) %d+ (.*)$')
      if m and tonumber(ends) > now then
        spend(who)
        budget = budget - 100
        waiters[#waiters + 1] = {mode = m, slots = of, number = ids[i + 1], identity = who}
      end
    end
  end
  return waiters, seen, of_queue
end

local function look(lock, tail, held, seen)
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
  local is_marked = value == 'dlock:frozen'
  local freeze, is_freeze_elsewhere = freeze_of(tail, is_marked)
  if is_marked then
    -- It keeps other programs out, and is no hold.
    kind, value = 'none', false
  end
  local rest = kind == 'none' and -2 or redis.call('PTTL', lock)
  local mode, slots, digest = '', '', nil
  local holders, of_held = {}, 0
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
      mode, slots = string.sub(fields.mode or '', 1, 1), string.sub(fields.slots or '', 1, 10)
      holders, held, of_held = holders_of(tail, noted, fields, held, mode, rest)
    end
  end
  if kind ~= 'none' and mode == '' then
    local size = redis.pcall('MEMORY', 'USAGE', lock)
    local foreign = text or not (type(size) == 'number' and size > largest) and redis.pcall('DUMP', lock)
    digest = type(foreign) == 'string' and redis.sha1hex(foreign) or nil
  end
  local waiters, of_queue
  waiters, seen, of_queue = waiters_of(tail, seen)
  if kind == 'none' and of_queue == 0 and not freeze then
    redis.pcall('ZREM', index, lock)
  end
  return {
    kind = kind, mode = mode, slots = slots, remaining = rest, digest = digest,
    holders_seen = held, of_holders = of_held, waiters_seen = seen, of_waiters = of_queue,
    holders = holders[1] and holders or nil, waiters = waiters[1] and waiters or nil,
    success = text_of('dlock#success:' .. tail), freeze = freeze, is_freeze_elsewhere = is_freeze_elsewhere
  }
end

local locks = {}
for _, of in ipairs(request.locks) do
  if budget <= 0 then
    break
  end
  budget = budget - 100
  locks[#locks + 1] = look(of.lock, of.tail, of.holders_seen, of.waiters_seen)
end
return cjson.encode({now = now, locks = locks})
