-- A claim: it is granted, waits in the queue, or is refused.

-- Another number of slots that the live users of the lock have agreed on: all of them must use the same.
local function other_slots()
  local of = request.slots
  if mode == 'c' and slots ~= of then
    return slots
  end
  -- All live waiters for a slot use the same number, so checking one of them is enough.
  for _ = 1, max_expired do
    local last = call('ZRANGE', slot_waiters, -1, -1, 'WITHSCORES')
    local w = last[1] and tonumber(last[2]) > now and read_waiter(last[1])
    if w and w.of ~= of and last[1] ~= token then
      return w.of
    elseif w or not last[1] or tonumber(last[2]) <= now then
      return nil
    end
    call('ZREM', slot_waiters, last[1])
  end
end

-- Whether a waiter for a lock that several may hold was called, and so were enough waiters behind it: then there is no
-- need to check each of them.
local function is_in_run(w)
  local has_room = request.mode ~= 'x' and fits(request.mode, request.slots, mode, used, slots)
  if w and w.called > now and has_room and not frozen() then
    local later = call('ZRANGE', queue, max_called / 2, max_called / 2)[1]
    later = later and read_waiter(later)
    return later and later.called > now
  end
end

-- How the claim is notified as a waiter; `w` is its entry so far.
local function delivery_of(w)
  if w then
    return (w.delivery == '0' or w.delivery == '3') and '0' or request.delivery
  elseif request.delivery ~= '0' and try('PUBLISH', channels .. token, 'hello') ~= 1 then
    -- The client that frees the lock has the same permissions: a message that cannot reach us from here will not reach
    -- us from there.
    return '0'
  end
  return request.delivery
end

-- Takes a queue position, or keeps the one that the claim has with its entry `w`. Returns how it is notified, and the
-- error if the entry cannot be stored.
local function join_queue(w)
  local delivery, entry_ttl, ticket = delivery_of(w), request.entry_ttl, tonumber(request.ticket)
  local place_now = w and call('ZSCORE', queue, token)
  if not place_now or ticket and tonumber(place_now) ~= ticket then
    local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    local place_then = ticket or math.max(tonumber(last[2] or 0) + 1, time[1] * 1000000 + time[2])
    call('HSET', waiters, 'format', frozen() and 2 or 1)
    call('ZADD', queue, string.format('%.0f', place_then), token)
  end
  if delivery == '0' and (call('ZRANK', queue, token) or 0) > 1 then
    delivery = '3'
  end
  w = {
    mode = request.mode, of = request.slots, delivery = delivery, ends = now + entry_ttl, called = 0, who = request.identity
  }
  local noted = write_waiter(token, w)
  if type(noted) == 'table' and not string.find(noted.err, 'OOM', 1, true) then
    return delivery, noted
  end
  if w.mode == 'c' then
    call('ZADD', slot_waiters, w.ends, token)
    if call('PTTL', slot_waiters) < entry_ttl then
      call('PEXPIRE', slot_waiters, entry_ttl * 2)
    end
  end
  add_to_index(entry_ttl)
  if call('PTTL', queue) < entry_ttl then
    call('PEXPIRE', queue, entry_ttl * 2)
    call('PEXPIRE', waiters, math.max(entry_ttl * 2, freeze and freeze.rest or 0))
  end
  return delivery
end

-- The reply to a claim that is not granted: who holds the lock, and the records of some of them. `promised`: until when a
-- waiter ahead may claim.
local function busy(place, promised, delivery)
  local rest = call('PTTL', lock)
  local ids, records = {}, {}
  if mode == 'x' then
    read_members()
    rest = count > 1 and longest or rest
    for id in pairs(member_slots) do
      ids[#ids + 1] = id
    end
  elseif mode and mode ~= 'f' then
    -- A slot becomes free when the first lease ends, the lock when the last one ends.
    rest = math.max(lease_end(mode == 'c' and request.mode == 'c' and 0 or -1) - now, 0)
    ids = call('ZRANGE', ends, -16, -1)
  end
  for i = 1, math.min(#ids, 16) do
    local text = call('GET', members .. ids[i])
    if text and string.len(text) <= 8192 then
      records[#records + 1] = text
    end
  end
  -- A hash with this field is Redisson's RReadWriteLock, which no recipe supports.
  if key_type == 'hash' and call('HEXISTS', lock, 'mode') == 1 then
    key_type = 'rwlock'
  end
  local what = mode and (mode ~= 'f' and 'dlock' or key_type) or 'free'
  return {
    outcome = 'busy', kind = what, remaining = rest, position = place, call_remaining = math.max(promised - now, 0),
    now = now, can_be_notified = delivery ~= '0' and delivery ~= '3', holders = count,
    number = place > 0 and request.supersedes and string.format('%.0f', call('ZSCORE', queue, token) or 0) or nil,
    records = records[1] and records or nil, eviction = eviction_policy(), freeze = freeze and freeze.text
  }
end

local function supersedes(w)
  return string.find(w.who, '"supersedes":true', 1, true) ~= nil
end

-- The number of the first queue position of a run with this identity, that now has this one.
local function first_number(who, number)
  return tonumber(string.match(who, '"first_ticket":(%d+)') or number)
end

-- The first waiting run that has come later than the claim and supersedes it, wherever it stands: a claim that was late for
-- its turn has lost its position, and is not the newest by that.
local function superseding()
  local first, place, ids = first_number(request.identity, call('ZSCORE', queue, token)), 0, nil
  repeat
    ids = call('ZRANGE', queue, place, place + max_expired - 1, 'WITHSCORES')
    for i = 1, #ids, 2 do
      local w = ids[i] ~= token and read_waiter(ids[i])
      if w and w.ends > now and supersedes(w) and first_number(w.who, ids[i + 1]) > first then
        return w
      end
    end
    place = place + max_expired
  until #ids < 2 * max_expired
end

-- Notifies the waiters that the claim, which has just joined the queue, supersedes: those among the last few ahead of it.
-- Others find out from their next request.
local function notify_superseded(place)
  for _, id in ipairs(place > 0 and call('ZRANGE', queue, math.max(place - max_expired, 0), place - 1) or {}) do
    local w = read_waiter(id)
    if w and supersedes(w) then
      notify(id, w, 'superseded')
    end
  end
end

-- Decides on a claim that neither has the lock nor enters a hold: grants it, or lets it wait.
local function claim_in_order()
  local wants, of = request.mode, request.slots
  local place, promised, delivery = 0, 0, request.delivery
  if request.waits then
    local w, granted_now, failure = read_waiter(token), false, nil
    if w and w.ends <= now then
      leave_queue(token)
      w = nil
    end
    if is_in_run(w) then
      leave_queue(token)
      return grant()
    end
    delivery, failure = join_queue(w)
    if failure then
      return failure
    end
    local newer, rank = nil, request.supersedes and call('ZRANK', queue, token)
    if rank then
      newer = superseding()
    end
    if newer then
      leave(rank)
      call_next()
      return {outcome = 'superseded', by = newer.who}
    elseif rank and not w then
      notify_superseded(rank)
    end
    granted_now, promised = turn(token, wants, of)
    if granted_now then
      return grant()
    end
    place = (call('ZRANK', queue, token) or -1) + 1
  else
    local _, until_, held, occupied_slots, many, called = turn(nil, wants, of)
    if call('ZCARD', queue) == called and fits(wants, of, held, occupied_slots, many) then
      return grant()
    end
    promised = until_
  end
  -- Waiters ahead may be called beside holders that exclude this one.
  return busy(place, fits(wants, of, mode, used, slots) and promised or 0, delivery)
end

-- Decides on a request for the lock. Numbers of 16 digits are formatted explicitly: Lua would write them as `1.7e+15`.
-- The server's time is used only as the seed of the counters, for the end of queue entries, and for the age of a holder.
local function claim()
  local wants, of, restored = request.mode, request.slots, tonumber(request.restored)
  local reply = grant_again() or enter()
  if reply then
    return reply
  end
  free_if_expired()
  local other = wants == 'c' and other_slots()
  if other then
    leave_queue(token)
    return {outcome = 'other_slots', slots = other}
  end
  if restored then
    leave_queue(token)
    return fits(wants, of, mode, used, slots) and grant(restored) or {outcome = 'outer_lost'}
  end
  local format, there = call('HGET', waiters, 'format'), frozen()
  if format and format ~= '1' and format ~= '2' then
    return {outcome = 'other_format', format = format}
  elseif not format and call('EXISTS', queue) == 1 then
    -- Only if needed: after its first write a script may go on although the server is out of memory.
    call('DEL', queue)
  end
  if is_freeze_elsewhere and (there or fits(wants, of, mode, used, slots)) then
    error('TRYAGAIN')
  elseif there then
    keep_frozen()
  elseif format == '2' then
    thaw_waiters()
  elseif not format and fits(wants, of, mode, used, slots) then
    return grant()
  end
  return claim_in_order()
end

-- Redlock: gives the hold the fencing token of the other nodes, or a larger one. If a majority has given the token
-- already it is only stored.
local function fence()
  local to, mine = tonumber(request.fencing), holds(token) and fencing_of(token)
  if mine and tonumber(mine) ~= to then
    -- The node may have been restarted since it granted the lock, and have an older counter.
    read_since_marker(request.node)
    mine = next_fencing(to, request.counter_life, request.is_established)
    local text = string.gsub(call('GET', members .. token), '"fencing":%d+', '"fencing":' .. mine, 1)
    call('SET', members .. token, text, 'PX', remaining_of(token))
  end
  return {outcome = mine and 'fenced' or 'gone', fencing = mine or nil}
end

-- A claim on a server or, with `node`, on a node of a Redlock, whose reply shows how long the node has kept all data.
local function claim_at()
  if not request.node then
    return claim()
  end
  read_since_marker(request.node)
  local reply = claim()
  if not reply.err then
    local number = call('ZSCORE', queue, token)
    reply.node = {age = now - born, id = itself, is_new = sign == '', number = number and string.format('%.0f', number) or nil}
  end
  return reply
end

local operations = {acquire = claim_at, fence = fence}
