-- Everything that dlock does to a lock on Redis, as one atomic step each. What is stored where, and why, is told in
-- script.rs.
--
-- KEYS: the lock. It is the only one that is declared: while a slot of a Redis Cluster moves, a question that names keys
-- of which some are not there is refused (cluster-spec, "TRYAGAIN"). ARGV: the token, and a JSON array: what to do, what
-- the lock's side keys end in, the index of the locks, the list that the outcome is kept in, the keys of the recipe by their
-- purpose (recipe.rs), and what the operation needs besides. An array, because a server to which we have not proven yet who
-- we are closes the connection at the eleventh word (networking.c), before it says what it lacks. And a third word where the
-- slot of the lock may still be on its way to this node of a Redis Cluster.
local call, try = redis.call, redis.pcall
local lock, token, given = KEYS[1], ARGV[1], cjson.decode(ARGV[2])
local operation, tail, index, history, recipe = given[1], given[2], given[3], given[4], table.remove(given, 5)
local function side(what)
  return 'dlock#' .. what .. ':' .. tail
end
local holder, counter, queue, waiters = side('holder'), recipe.counter or side('fencing'), side('queue'), side('waiters')
local members, channels = side('member') .. ':', side('call') .. ':'
-- Members by the end of their leases, vacant slots by their numbers, and waiters for a slot by the end of their places: no
-- step reads all members or all waiters of a lock, of which there may be thousands.
local ends, vacant, slot_waiters = side('member-ends'), side('free-slots'), side('waiter-slots')
-- Who is called has so many ms to claim; how many outcomes are kept, and for how long; how long the index outlives the
-- last grant, and an entry in it the end that was foreseen for its lock.
local claim, outcomes, month, day = 500, 20, 2678400000, 86400000
-- A called waiter that polls, and seldom because it was far back in the queue, has this many ms instead.
local slow_claim = 2000
-- How many waiters at most are called and have not claimed yet, and how many expired members are removed in one step.
local most_called, most_expired = 64, 200
-- A called waiter that has not claimed after this many ms is late; then so many from the head of the queue at most are
-- called although it is not their turn. Fewer than `most_called / 2`, which tells a run of readers (`acquire`).
local late_after, most_ahead = 50, 32
-- The length of the longest value that is read from the lock. Longer ones are data of other programs.
local longest_value = 8192

-- The first question of somebody who had to say who he is brings what a lock needs sooner or later: a right that is
-- missing must not be found out under a running command. What is tried changes nothing. Answers `{-7, which, what the server
-- said, ...}`. A server that takes no writes, as the first of them tells, says so when it matters: after a write that it
-- lets pass it would not say it any more.
if operation == 'acquire' and #given[14] > 1 then
  local places = {lock, holder, counter, queue, waiters, members .. token .. '?'}
  local lacks = {-7}
  for which, trial in ipairs(cjson.decode(given[14])) do
    trial[2] = places[trial[2]]
    local said = try(unpack(trial))
    said = type(said) == 'table' and said.err or ''
    if string.find(said, 'ermission', 1, true) or string.find(said, 'user executing', 1, true) then
      lacks[#lacks + 1] = which
      lacks[#lacks + 1] = said
    elseif which == 1 and said ~= '' then
      break
    end
  end
  if lacks[2] then
    return lacks
  end
end

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The length of what is in the lock, in bytes. A user without the right to these commands reads values of any length.
local function length()
  local bytes = recipe.channel and try('MEMORY', 'USAGE', lock) or try('STRLEN', lock)
  return type(bytes) == 'number' and bytes or 0
end

-- What is in the lock: a text, or, where Redisson locks too, the name of the only field of a hash; false if there is
-- nothing, true if the value is not one of ours. Large values are not read: to copy 100 MB stops the server for 0.5 s.
local function read()
  if length() > longest_value then
    return true
  end
  if not recipe.channel then
    return try('GET', lock)
  end
  local fields = try('HLEN', lock)
  if fields == 1 then
    return call('HGETALL', lock)[1]
  end
  return type(fields) == 'table' and fields or fields ~= 0
end

local own = recipe.channel and 'hash' or 'string'
local kind, value = own, read()
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  kind, value = call('TYPE', lock).ok, false
end

-- mode: false is free, f is foreign. high: the slots below it have been taken at some time; those of them that are free
-- again are in `vacant`.
local mode, slots, high = false, 0, 0
if kind ~= own then
  mode = 'f'
elseif value then
  local noted = try('HMGET', holder, 'format', 'value', 'mode', 'slots', 'high')
  if noted.err and not string.find(noted.err, 'WRONGTYPE', 1, true) then
    return noted
  end
  if noted[2] == value then
    if noted[1] ~= (noted[3] == 'x' and '1' or '2') then
      return {-6, noted[1]}
    end
    mode, slots, high = noted[3], tonumber(noted[4]), tonumber(noted[5] or 0)
  else
    mode = value == token and 'x' or 'f'
  end
end

-- Puts a text into the lock instead of what is there. What may fail for want of memory comes first.
local function write(text, lease)
  if recipe.channel then
    call('HSET', lock, text, 1)
    if value then
      call('HDEL', lock, value)
    end
    call('PEXPIRE', lock, lease)
  else
    call('SET', lock, text, 'PX', lease)
  end
end

-- Frees the lock, and says so to those of other programs who wait, as far as that is allowed: to the next one of
-- python-redis-lock; to all of Redisson, which listens on either kind of channel, and to the first in the line of its fair
-- lock.
local function free()
  if recipe.signal then
    try('DEL', recipe.signal)
    try('LPUSH', recipe.signal, 1)
    try('PEXPIRE', recipe.signal, 1000)
  end
  call('DEL', lock)
  try('DEL', holder)
  if mode == 's' or mode == 'c' then
    try('DEL', ends)
    try('DEL', vacant)
  end
  mode, value, slots, high = false, false, 0, 0
  if recipe.channel then
    local first = try('LRANGE', recipe.queue, 0, 0)[1]
    for _, channel in ipairs({recipe.channel, first and recipe.channel .. ':' .. first}) do
      try('PUBLISH', channel, 0)
      try('SPUBLISH', channel, 0)
    end
  end
end

-- One member: the rest of its lease, or nothing. One whose expiry somebody has removed lives as long as the lock, or, if
-- that has none any more either, for another lease as it asked for.
local function left_of(id)
  local left = call('PTTL', members .. id)
  if left == -2 and ARGV[3] then
    -- It may be alive where the others come from.
    error('TRYAGAIN')
  end
  if left == -1 then
    left = call('PTTL', lock)
    if left < 0 then
      left = tonumber(string.match(call('GET', members .. id) or '', '"lease":(%d+)')) or 0
    end
    call('PEXPIRE', members .. id, left)
  end
  return left >= 0 and left or nil
end

local function holds(id)
  if mode == 'x' and value == id then
    return true
  end
  return mode and mode ~= 'f' and call('HEXISTS', holder, 'm:' .. id) == 1 and left_of(id) ~= nil
end

-- How many members a sorted set has. Refused for a key that is not there any more while the slot moves.
local function size(set)
  local count = try('ZCARD', set)
  return type(count) == 'number' and count or 0
end

-- Moves the end of the lock, and of what is stored beside it, which must not end before the lock.
local function keep(lasts)
  call('PEXPIRE', lock, lasts)
  call('PEXPIRE', holder, lasts)
  if mode ~= 'x' then
    try('PEXPIRE', ends, lasts + 1000)
    try('PEXPIRE', vacant, lasts + 1000)
  end
end

-- When the lease of a member ends: of the first one (0), or of the last one (-1).
local function end_of(which)
  return tonumber(call('ZRANGE', ends, which, which, 'WITHSCORES')[2] or 0)
end

-- Notes a new end of a member's lease. The lease itself is the life of the member's key, which the store ends.
local function note_end(id, lasts)
  if mode ~= 'x' then
    try('ZADD', ends, 'XX', now + lasts, id)
  end
end

-- Removes a member, and makes its slot vacant unless another member is in it. Returns false if its slot is not known.
local function remove(id)
  local slot = mode == 'c' and call('HGET', holder, 'm:' .. id)
  call('HDEL', holder, 'm:' .. id, 'r:' .. id)
  if mode == 'x' then
    return true
  end
  call('ZREM', ends, id)
  if mode == 'c' and tonumber(slot or nil) then
    local others = tonumber(call('HGET', holder, 'n:' .. slot) or 0)
    if others > 0 then
      call('HSET', holder, 'n:' .. slot, others - 1)
    else
      try('ZADD', vacant, slot, slot)
      try('PEXPIRE', vacant, math.max(call('PTTL', lock), 0) + 1000)
    end
  end
  return mode ~= 'c' or slot ~= false
end

-- Reads all living members: their slots and the rests of their leases, how many they are, the longest lease, and which
-- slots they have, and how many. Removes the expired. An exclusive lock has few members, the runs nested in it; of others
-- they are read only to revoke a hold or to write the sets anew.
local family, rests, count, longest, occupied, used = {}, {}, 0, 0, {}, 0
local function walk()
  family, rests, count, longest, occupied, used = {}, {}, 0, 0, {}, 0
  local fields = mode and mode ~= 'f' and call('HGETALL', holder) or {}
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'm:' then
      local id = string.sub(fields[i], 3)
      local left = left_of(id)
      if left then
        local slot = fields[i + 1]
        family[id], rests[id], count = slot, left, count + 1
        longest = math.max(longest, left)
        if slot ~= '' then
          used = used + (occupied[slot] and 0 or 1)
          occupied[slot] = (occupied[slot] or 0) + 1
        end
      else
        call('HDEL', holder, fields[i], 'r:' .. id)
      end
    end
  end
end

-- Writes the sets beside a shared lock anew, from its hash: one of them was evicted, or a member was removed while the slot
-- moved.
local function rebuild()
  walk()
  if count == 0 then
    return
  end
  call('DEL', ends)
  call('DEL', vacant)
  high = 0
  for id, left in pairs(rests) do
    call('ZADD', ends, now + left, id)
  end
  for slot, several in pairs(occupied) do
    high = math.max(high, (tonumber(slot) or 0) + 1)
    call('HSET', holder, 'n:' .. slot, several - 1)
  end
  for slot = 0, high - 1 do
    local text = string.format('%.0f', slot)
    if not occupied[text] then
      call('HDEL', holder, 'n:' .. text)
      call('ZADD', vacant, slot, text)
    end
  end
  call('HSET', holder, 'high', high)
  keep(math.max(call('PTTL', lock), longest))
end

-- How many living members a lock has, and how many slots are occupied. Removes the expired, of a shared lock a limited
-- number at a time.
local function look()
  if mode ~= 's' and mode ~= 'c' then
    return walk()
  end
  local removed, is_known = 0, true
  while removed < most_expired do
    local first = call('ZRANGE', ends, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) >= now then
      break
    end
    local left = left_of(first[1])
    if left then
      -- It was renewed while the keys of the lock were on different nodes.
      call('ZADD', ends, now + left, first[1])
    else
      is_known = remove(first[1]) and is_known
    end
    removed = removed + 1
  end
  count, used = size(ends), mode == 'c' and high - size(vacant) or 0
  if count == 0 or used > count or not is_known then
    rebuild()
  elseif removed == most_expired and end_of(-1) < now and not left_of(call('ZRANGE', ends, -1, -1)[1]) then
    -- All of them have expired.
    count, used = 0, 0
  end
end

-- Notes in the index that the lock is used for so long, for those who ask what locks there are. Never read here: whoever
-- reads it on a connection with client tracking would hear of every lock there is.
local function list(lasts)
  local noted = try('ZADD', index, 'GT', now + lasts, lock)
  if type(noted) == 'table' then
    -- Before Redis 6.2.
    try('ZADD', index, now + lasts, lock)
  end
end

-- Notes how a run ended, or did not begin.
local function record(text)
  if text and text ~= '' then
    try('LPUSH', history, string.format('%.0f ', now) .. text)
    try('LTRIM', history, 0, outcomes - 1)
    try('PEXPIRE', history, month)
  end
end

-- How the server evicts keys when its memory is full, if it does.
local function evicting()
  local info = try('INFO', 'memory')
  if type(info) == 'string' and not string.find(info, '\nmaxmemory:0\r', 1, true) then
    local policy = string.match(info, 'maxmemory_policy:([%w-]+)')
    return policy ~= 'noeviction' and policy or ''
  end
  return ''
end

-- Moves the end of a lock that may have several holders, for a lease of this length.
local function extend(lease)
  if mode == 'x' and call('HLEN', holder) > 5 then
    walk()
  end
  local to = lease
  if mode ~= 'x' or count > 1 then
    if call('PTTL', lock) >= lease then
      return
    end
    to = lease + math.floor(lease / 3)
  end
  keep(to)
end

local function forget(id)
  call('ZREM', queue, id)
  call('HDEL', waiters, id)
  try('ZREM', slot_waiters, id)
  -- Refused for a key that is not there any more while the slot moves; as is a command with two keys.
  if try('ZCARD', queue) == 0 then
    call('DEL', waiters)
  end
end

local function waiter(id)
  local text = call('HGET', waiters, id)
  if not text then
    return nil
  end
  local m, of, hears, ends, called, who = string.match(text, '^(%a) (%d+) (%d) (%d+) (%d+) (.*)$')
  return m and {mode = m, of = tonumber(of), hears = hears, ends = tonumber(ends), called = tonumber(called), who = who}
end

local function note(id, w)
  return try('HSET', waiters, id,
    string.format('%s %.0f %s %.0f %.0f ', w.mode, w.of, w.hears, w.ends, w.called) .. w.who)
end

-- Whether it may have been heard: no right to publish is not the same as nobody there, and a server counts only those who
-- listen to itself: not those of another node, and not those who are on their way from the master that it has replaced.
local function tell(id, w, word)
  return w.hears == '0' or w.hears == '3' or try('PUBLISH', channels .. id, word) ~= 0 or w.hears == '2'
end

local function fits(wants, of, held, taken, slots)
  return not held or wants == 's' and held == 's' or wants == 'c' and held == 'c' and of == slots and taken < of
end

-- Tells two, from this place on, that the line has moved: the head has to watch the lock, the second the head.
local function tell_next(place, me)
  local told = 0
  while told < 2 do
    local id = call('ZRANGE', queue, place + told, place + told)[1]
    if not id then
      break
    end
    local w = waiter(id)
    if w and (id == me or tell(id, w, 'next')) then
      told = told + 1
    else
      forget(id)
    end
  end
  return told
end

-- Calls a waiter, and notes until when it may claim. Returns whether it may have heard.
local function call_up(id, w)
  if not tell(id, w, 'called') then
    return false
  end
  w.called = now + (w.hears == '3' and slow_claim or claim)
  note(id, w)
  return true
end

-- Calls those whose turn it is, from the head of the queue as long as there is room, a limited number at a time: each of
-- them that claims has the next one called. Tells the next two, and the last, that the queue has moved. Those who did not
-- claim in time, or whom nothing reaches, lose their place. `me` is not called but granted. `wants` and `many`: the mode
-- and the slots of the claim that is asked for, as `me` or behind the queue, if one is. Returns whether it is granted;
-- until when somebody ahead may claim; what is held then; and whether the queue is empty.
local function advance(me, wants, many)
  local held, taken, of = mode, used, slots
  local place, called, late, granted, promised = 0, false, false, false, 0
  while true do
    local id = call('ZRANGE', queue, place, place)[1]
    if not id then
      break
    end
    local w = waiter(id)
    if not w or id ~= me and (w.ends < now or w.called > 0 and w.called <= now) then
      forget(id)
    elseif not fits(w.mode, w.of, held, taken, of) or place >= most_called then
      break
    elseif id == me then
      held, of, taken, granted = w.mode, w.of, taken + 1, true
      forget(id)
    else
      local is_new = w.called == 0
      if is_new and not call_up(id, w) then
        forget(id)
      else
        held, of, taken, called = w.mode, w.of, taken + 1, called or is_new
        late = late or w.called - now <= claim - late_after
        promised, place = math.max(promised, w.called), place + 1
      end
    end
  end
  -- There is room for the claim, and those whose turn it is have not taken it: they may be dead, and those behind them
  -- too. So all of them are called now, and together cost the time of one claim. The first of them that claims still
  -- comes first, and the others keep their places. Who claims calls others only once for each promise, or those who are
  -- called would call each other.
  if wants and not granted and (called or late and not me) and fits(wants, many, mode, used, slots) then
    local ahead = me and call('ZRANK', queue, me) or call('ZCARD', queue)
    for _, id in ipairs(call('ZRANGE', queue, place, math.min(ahead, math.max(place, most_ahead)) - 1)) do
      local w = waiter(id)
      if w and not fits(w.mode, w.of, mode, used, slots) then
        break
      elseif w and (w.called > 0 or w.ends >= now and call_up(id, w)) then
        promised = math.max(promised, w.called)
      end
    end
  end
  if called then
    local told = tell_next(place, me)
    -- All of these may have been stopped together; so somebody else is to look after them.
    if call('ZCARD', queue) > place + told then
      local last = call('ZRANGE', queue, -1, -1)[1]
      local w = waiter(last)
      if last ~= me and not (w and tell(last, w, 'look')) then
        forget(last)
      end
    end
  end
  return granted, promised, held, taken, of, call('ZCARD', queue) == place
end

local function fencing_of(id)
  return string.match(call('GET', members .. id) or '', '"fencing":(%d+)')
end

-- Redlock: since when, in ms, this node has known all that it was told, and whom it is. A server that was started again
-- may have kept less, or older things. Without the right to ask which one runs, only the loss of everything is noticed. A
-- minus tells of one that was asked before that time as well.
local born, itself, sign
local function look_back(id)
  local info = try('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  local before, at, who, ran = string.match(call('GET', 'dlock#since') or '', '^(-?)(%d+) (%S+) ?(%w*)')
  born, itself, sign = tonumber(at), who, before
  if not at or born > now or ran ~= '' and run ~= '' and ran ~= run then
    born, itself, sign = now, who or id, at and '-' or ''
    call('SET', 'dlock#since', string.format('%s%.0f %s %s', sign, now, itself, run))
  end
end

-- Gives the number of the next grant, or `to` if that is larger. The server's time is where a counter begins; on one
-- server, and on a node that may have come back with an older counter, also the least that it goes on from. What is only
-- noted was given by others.
local function number(to, life, noted)
  local last = tonumber(call('GET', counter) or 0)
  if not last or last ~= last or last < 0 then
    last = 0
  end
  local least = born and last > 0 and born * 1000 or time[1] * 1000000 + time[2]
  local next = noted and math.max(last, to) or math.max(math.floor(last) + 1, least, to)
  if next < 9007199254740992 then
    call('SET', counter, string.format('%.0f', next))
    if life ~= '0' then
      call('PEXPIRE', counter, life)
    end
    return string.format('%.0f', noted and to or next)
  end
end

-- More given: lease in ms, identity as JSON, life of the counter in ms (0: for ever), mode, slots, `now` or `wait`, whether it
-- hears us (1; 2 by way of other nodes too; 0), life of a place in the line in ms, whether it must be inside another hold
-- (1, 0), whether it wants to know how keys are evicted (0 if not; 1, or what is to be tried first), for Redlock its number
-- in the line if all nodes have agreed on that and an id for the node if it has none, and the tokens of the holds that it
-- may be inside of. Of a Redlock also `mend`: a majority of nodes has renewed this hold, whose fencing token takes the
-- number's place, and this one has forgotten it.
--
-- A token that is a member already is our own earlier attempt whose reply was lost. Numbers of 16 digits are formatted
-- by hand: Lua would write them as `1.7e+15`. The server's time is only a seed of the counters, the end of places in
-- the line, and the age of a holder. The lock is set last: what fails before (a right that is missing, no memory) has
-- taken nothing.
--
-- Answers `{1, fencing, lease, slot, eviction}`; `{0, rest of the lease, type of the key, place in the line, rest of a
-- promise, now, whether a call would be heard, how many hold it, eviction, what some of them say...}`; `{-2}`: the
-- counter has no next value below 2^53; `{-3, mode, slots}`: the hold that we are inside of has another mode;
-- `{-4, slots}`: another number of slots; `{-5}`: not inside any more; `{-6, format}`: stored by another dlock.
local function acquire()
  local lease, identity, life, wants, of = tonumber(given[5]), given[6], given[7], given[8], tonumber(given[9])
  local waits, hears, place_life = given[10] == 'wait', given[11], tonumber(given[12])
  local must_enter, eviction = given[13] == '1', given[14] ~= '0' and evicting() or ''
  local ticket, mended = tonumber(given[15]), nil

  local function answer(fencing, slot)
    list(lease)
    read()
    return {1, fencing, lease, tonumber(slot) or -1, eviction}
  end

  -- Becomes a member, and the first one if nobody else is.
  local function join(fencing, slot)
    local text = string.format('{"fencing":%s,"at":%.0f,"lease":%.0f,"identity":', fencing, now, lease) .. identity .. '}'
    if mode then
      call('HSET', holder, 'm:' .. token, slot)
      call('SET', members .. token, text, 'PX', lease)
      if mode ~= 'x' then
        call('ZADD', ends, now + lease, token)
      end
      count = count + 1
      extend(lease)
    else
      local new = token
      if wants ~= 'x' then
        new = 'dlock:' .. (wants == 's' and 's' or string.format('c%.0f', of)) .. ':' .. fencing
      end
      call('DEL', holder)
      call('HSET', holder, 'format', wants == 'x' and 1 or 2, 'value', new, 'mode', wants, 'slots', of, 'm:' .. token, slot)
      call('PEXPIRE', holder, lease)
      if wants ~= 'x' then
        call('DEL', ends)
        call('DEL', vacant)
        call('ZADD', ends, now + lease, token)
        call('PEXPIRE', ends, lease + 1000)
      end
      if wants == 'c' then
        call('HSET', holder, 'high', 1)
      end
      call('SET', members .. token, text, 'PX', lease)
      write(new, lease)
    end
    return answer(fencing, slot)
  end

  -- The lowest slot that nobody has.
  local function take_slot()
    local slot = 0
    if mode == 'c' then
      local free = call('ZRANGE', vacant, 0, 0)[1]
      if free then
        call('ZREM', vacant, free)
        return free
      end
      slot, high = high, high + 1
      call('HSET', holder, 'high', string.format('%.0f', high))
    end
    while mode == 'x' and occupied[string.format('%.0f', slot)] do
      slot = slot + 1
    end
    return string.format('%.0f', slot)
  end

  local function grant()
    local fencing = number(mended or 0, life, mended)
    if not fencing then
      return {-2}
    end
    try('ZREMRANGEBYSCORE', index, '-inf', now - day)
    try('PEXPIRE', index, month)
    return join(fencing, wants == 'c' and take_slot() or '')
  end

  if holds(token) then
    local fencing = fencing_of(token)
    if fencing then
      call('PEXPIRE', members .. token, lease)
      note_end(token, lease)
      extend(lease)
      forget(token)
      return answer(fencing, call('HGET', holder, 'm:' .. token))
    end
  end

  local inside = nil
  for i = 17, #given do
    if holds(given[i]) then
      inside = given[i]
    end
  end
  if inside then
    if mode == 'c' and wants == 'c' and slots ~= of then
      return {-4, slots}
    end
    if mode ~= 'x' and mode ~= wants then
      return {-3, mode, slots}
    end
    local fencing, slot = fencing_of(inside), ''
    if not fencing then
      return {-5}
    end
    look()
    if wants == 'c' and mode == 'x' then
      slot = take_slot()
    elseif wants == 'c' then
      slot = call('HGET', holder, 'm:' .. inside) or ''
      call('HSET', holder, 'n:' .. slot, tonumber(call('HGET', holder, 'n:' .. slot) or 0) + 1)
    end
    return join(fencing, slot)
  elseif must_enter then
    return {-5}
  end

  if mode == 's' or mode == 'c' then
    look()
    if count == 0 then
      free()
    end
  end

  -- Whoever lives and uses the lock has agreed on the number of slots.
  if wants == 'c' then
    if mode == 'c' and slots ~= of then
      forget(token)
      return {-4, slots}
    end
    -- All living waiters for a slot have agreed on one number; so one of them tells it.
    for _ = 1, most_expired do
      local last = call('ZRANGE', slot_waiters, -1, -1, 'WITHSCORES')
      local w = last[1] and tonumber(last[2]) >= now and waiter(last[1])
      if w and w.of ~= of and last[1] ~= token then
        forget(token)
        return {-4, w.of}
      elseif w or not last[1] or tonumber(last[2]) < now then
        break
      end
      call('ZREM', slot_waiters, last[1])
    end
  end

  if given[10] == 'mend' then
    mended = ticket
    forget(token)
    return fits(wants, of, mode, used, slots) and grant() or {-5}
  end

  local place, granted, promised = 0, false, 0
  local format = call('HGET', waiters, 'format')
  if not format then
    -- Only where it is due: after its first write a script is let go on though the server is out of memory.
    if call('EXISTS', queue) == 1 then
      call('DEL', queue)
    end
    if fits(wants, of, mode, used, slots) then
      return grant()
    end
  elseif format ~= '1' then
    return {-6, format}
  end
  if waits then
    local w = waiter(token)
    if w and w.called > now and wants ~= 'x' and fits(wants, of, mode, used, slots) then
      local later = call('ZRANGE', queue, most_called / 2, most_called / 2)[1]
      later = later and waiter(later)
      if later and later.called > now then
        -- It was called, and enough of those behind it were: there is no need to look at each of them.
        forget(token)
        return grant()
      end
    end
    if w then
      hears = (w.hears == '0' or w.hears == '3') and '0' or hears
    elseif hears ~= '0' and try('PUBLISH', channels .. token, 'hello') ~= 1 then
      -- Whoever frees the lock has the rights that we have: what does not reach us from here will not from there.
      hears = '0'
    end
    local place_now = w and call('ZSCORE', queue, token)
    if not place_now or ticket and tonumber(place_now) ~= ticket then
      local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
      local place_then = ticket or math.max(tonumber(last[2] or 0) + 1, time[1] * 1000000 + time[2])
      call('HSET', waiters, 'format', 1)
      call('ZADD', queue, string.format('%.0f', place_then), token)
    end
    if hears == '0' and (call('ZRANK', queue, token) or 0) > 1 then
      hears = '3'
    end
    w = {mode = wants, of = of, hears = hears, ends = now + place_life, called = 0, who = identity}
    local noted = note(token, w)
    if type(noted) == 'table' and not string.find(noted.err, 'OOM', 1, true) then
      return noted
    end
    if wants == 'c' then
      call('ZADD', slot_waiters, w.ends, token)
      if call('PTTL', slot_waiters) < place_life then
        call('PEXPIRE', slot_waiters, place_life * 2)
      end
    end
    list(place_life)
    if call('PTTL', queue) < place_life then
      call('PEXPIRE', queue, place_life * 2)
      call('PEXPIRE', waiters, place_life * 2)
    end
    granted, promised = advance(token, wants, of)
    if granted then
      return grant()
    end
    place = (call('ZRANK', queue, token) or -1) + 1
  else
    local _, until_, held, taken, many, all = advance(nil, wants, of)
    if all and fits(wants, of, held, taken, many) then
      return grant()
    end
    promised = fits(wants, of, mode, used, slots) and until_ or 0
  end

  local rest = call('PTTL', lock)
  local named, said = {}, {}
  if mode == 'x' then
    walk()
    rest = count > 1 and longest or rest
    for id in pairs(family) do
      named[#named + 1] = id
    end
  elseif mode and mode ~= 'f' then
    -- A slot gets free with the first of them, the lock with the last.
    rest = math.max(end_of(mode == 'c' and wants == 'c' and 0 or -1) - now, 0)
    named = call('ZRANGE', ends, -16, -1)
  end
  for i = 1, math.min(#named, 16) do
    local text = call('GET', members .. named[i])
    if text and string.len(text) <= 8192 then
      said[#said + 1] = text
    end
  end
  -- What has this field is Redisson's lock for readers and writers, and as good as none for anybody else.
  if kind == 'hash' and call('HEXISTS', lock, 'mode') == 1 then
    kind = 'rwlock'
  end
  local what = mode and (mode ~= 'f' and 'dlock' or kind) or 'free'
  return {0, rest, what, place, math.max(promised - now, 0), now, (hears == '0' or hears == '3') and 0 or 1, count, eviction, unpack(said)}
end

-- More given: lease in ms. Answers `{1}`: extended, `{1, what}`: extended, and to be given up because somebody said so,
-- `{0}`: gone, `{-1}`: somebody else's. Never creates the lock anew, and uses no command that is refused when the server is
-- out of memory. An expiry that somebody removed or shortened is put back.
local function renew()
  if mode == false then
    return {0}
  end
  if not holds(token) then
    return {-1}
  end
  call('PEXPIRE', members .. token, given[5])
  note_end(token, tonumber(given[5]))
  extend(tonumber(given[5]))
  list(tonumber(given[5]))
  local revoked = call('HGET', holder, 'r:' .. token)
  read()
  return {1, revoked}
end

-- Takes a member out, or leaves it to the store for another `rest` ms. What needs memory (a note for others, another value
-- for a lock whose first owner leaves others inside) may fail and is then left out.
local function take_out(id, rest)
  if rest > 0 then
    local text = call('GET', members .. id)
    if text and not string.find(text, '"ended":', 1, true) then
      try('SET', members .. id, string.format('{"ended":%.0f,', now) .. string.sub(text, 2), 'PX', rest)
    end
    call('PEXPIRE', members .. id, rest)
    note_end(id, rest)
  else
    remove(id)
    call('DEL', members .. id)
  end
  look()
  if count == 0 and (rest == 0 or mode ~= 'x') then
    free()
  elseif mode ~= 'x' then
    -- Whoever holds the lock is told of each change of its key: it is changed only if it would end too early, or much too
    -- late for other programs that wait for it.
    local lasts, left = math.max(end_of(-1) - now, rest), call('PTTL', lock)
    if count == 1 then
      keep(lasts)
    elseif left < lasts or left > lasts * 2 then
      keep(lasts + math.floor(lasts / 3))
    end
  else
    longest = math.max(longest, rest)
    keep(longest)
    if rest == 0 and value == id then
      local other = next(family)
      pcall(write, other, longest)
      try('HSET', holder, 'value', other)
    end
  end
end

-- Calls whose turn it is, and takes the lock out of the index if nobody is left.
local function hand_on()
  advance(nil)
  if not mode and call('EXISTS', queue) == 0 then
    try('ZREM', index, lock)
  end
end

-- More given: for how many ms to keep the lock without its owner, and what to note of the run. Answers 1: given up, 2:
-- kept, 0: gone, -1: somebody else's. A place in the line is given up in any case. What somebody wants to be given up is not
-- kept.
local function release()
  local rest, result = tonumber(given[5]), mode and -1 or 0
  if mode and mode ~= 'f' and call('HEXISTS', holder, 'r:' .. token) == 1 then
    rest = 0
  end
  record(given[6])
  local place = call('ZRANK', queue, token)
  if place then
    forget(token)
    if place < 2 then
      tell_next(0, nil)
    end
  end
  if holds(token) then
    result = rest > 0 and 2 or 1
    take_out(token, rest)
  else
    look()
  end
  hand_on()
  return {result}
end

-- More given: the fencing token of the hold that is to end, why (JSON), and `now` if its owner need not be told. Whoever is
-- in that hold is told to give it up, at the next renewal or, because the lock is touched, at once; what nobody runs under
-- any more is taken out. Answers how many were told, and how many taken out.
local function revoke()
  local fencing, told, out = '"fencing":' .. given[5] .. ',', 0, 0
  walk()
  local all = family
  for id in pairs(all) do
    local text = call('GET', members .. id) or ''
    if string.find(text, fencing, 1, true) then
      if given[7] == 'now' or string.find(text, '"ended":', 1, true) then
        take_out(id, 0)
        out = out + 1
      else
        -- An expiry that somebody has removed is put back. It comes first: after that even a server out of memory takes the
        -- note.
        local left = call('PTTL', lock)
        call('PEXPIRE', lock, left >= 0 and left or math.max(longest, 1000))
        call('HSET', holder, 'r:' .. id, given[6])
        told = told + 1
      end
    end
  end
  if out > 0 then
    hand_on()
  end
  return {told, out}
end

-- More given: the digest of a foreign value. Deletes it if it is still there. Answers whether it was.
local function delete()
  local there = mode == 'f' and length() <= 1048576 and call(kind == 'string' and 'GET' or 'DUMP', lock)
  if not there or redis.sha1hex(there) ~= given[5] then
    return {0}
  end
  free()
  hand_on()
  return {1}
end

-- More given: what to note of a run that did not begin.
local function note_run()
  record(given[5])
  return {1}
end

-- Redlock. More given: the fencing token that the other nodes gave, the life of the counter in ms, and `note` if a majority
-- has given it already: then it is only noted; an id for the node if it has none. Answers the number that the hold has
-- here, or 0: there is no such hold.
local function fence()
  local to, mine = tonumber(given[5]), holds(token) and fencing_of(token)
  if mine and tonumber(mine) ~= to then
    -- It may have been started again since it granted this, and have an older counter.
    look_back(given[8])
    mine = number(to, given[6], given[7] == 'note')
    local text = string.gsub(call('GET', members .. token), '"fencing":%d+', '"fencing":' .. mine, 1)
    call('SET', members .. token, text, 'PX', left_of(token))
  end
  return {mine or '0'}
end

local operations = {
  acquire = acquire, renew = renew, release = release, revoke = revoke, delete = delete, record = note_run, fence = fence
}
-- A node of a Redlock answers a claim with this before it: for how long it has known all, and what it is; the claim's number
-- in the line; and whether it was never asked before it knew all.
if operation ~= 'acquire' or given[16] == '' then
  return operations[operation]()
end
look_back(given[16])
local answer = acquire()
if answer.err then
  return answer
end
return {now - born, itself, call('ZSCORE', queue, token) or '0', sign == '', answer}
