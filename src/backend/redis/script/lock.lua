-- The beginning of each script that runs an operation on a lock, as one atomic step: the request, the rights, the state
-- of the lock. script.rs describes what is stored where, and why.
--
-- KEYS: the lock. No other key is declared: while a slot of a Redis Cluster migrates, a request that declares several
-- keys of which some are missing is refused (cluster-spec, "TRYAGAIN").
--
-- The life of a waiter, whose operation is `acquire` each time:
--
-- 1. It joins: it gets a number in `queue` and an entry in `waiters`, which expires unless it sends a request every lease.
-- 2. The first waiter that the lock has room for is called, and so are those behind it that fit beside it
--    (`turn`, at a release or at any claim). It is sent `called`; the next two are sent `next`.
-- 3. It claims within `claim_ms`: its next request is granted, it leaves the queue, and is a member.
-- 4. If it does not claim in time, or cannot be reached, or its entry has expired, it loses its queue position; the next
--    waiter is called. If it is alive, its next request joins again, at the end.
-- 5. If it gives up, it sends `release`, which removes its entry.
--
-- ARGV[1]: the request, a JSON object with the fields of script.rs. It is one argument because a server closes the
-- connection of a client that has not authenticated at the eleventh argument (networking.c), before it reports that a
-- password is missing. ARGV[2] is present if the slot of the lock may still be migrating to this node of a Redis Cluster.
--
-- Returns a JSON object with the fields of reply.rs. In both, fencing tokens and numbers in the queue are texts: cjson
-- writes numbers with 14 digits.
local call, try = redis.call, redis.pcall
local lock, request = KEYS[1], cjson.decode(ARGV[1])
local token, tail, index, history, recipe = request.token, request.tail, request.index, request.history, request.recipe
local function side(what)
  return 'dlock#' .. what .. ':' .. tail
end
local holder, counter, queue, waiters = side('holder'), recipe.counter or side('fencing'), side('queue'), side('waiters')
local members, channels, success, frozen_key = side('member') .. ':', side('call') .. ':', side('success'), side('frozen')
-- Sorted sets: members by the end of their lease, vacant slots by number, and waiters for a slot by the end of their
-- queue entry. They ensure that no step reads all members or all waiters of a lock, of which there may be thousands.
local ends, vacant, slot_waiters = side('member-ends'), side('free-slots'), side('waiter-slots')
-- How long, in ms, a called waiter has to claim; how many outcomes are stored; for how long they and the last success
-- are; how long the index outlives the last grant, and how long an entry in it outlives the expected end of its lock.
local claim_ms, max_outcomes, retention, index_margin = 500, 20, 2678400000, 86400000
-- How long, in ms, a freeze without an end lasts where a time is needed: 1000 years. No other one lasts longer.
local forever = 31536000000000
-- The value of a lock that is free and frozen. It keeps other programs from taking the lock.
local marker = 'dlock:frozen'
-- The same for a called waiter that polls, and that polls seldom because it was far back in the queue.
local slow_claim_ms = 2000
-- The maximum number of waiters that are called and have not claimed yet, and of expired members that are removed in
-- one step.
local max_called, max_expired = 64, 200
-- A called waiter that has not claimed after this many ms is late. Then at most this many waiters at the head of the
-- queue are called although it is not their turn. The latter is less than `max_called / 2`, so that it is not mistaken
-- for a run of readers (`is_in_run`).
local late_after_ms, max_ahead = 50, 32
-- The length of the longest value that is read from the lock. Longer values are data of other programs.
local max_value_length = 8192

-- The first request of a user that had to authenticate tries what a lock needs sooner or later: a missing permission must
-- not be discovered while a command runs. Nothing is changed, because the scratch key and the field do not exist, and
-- the HSET lacks an argument. A server that accepts no writes, which the first trial shows, reports that error later
-- from the operation itself; after a write that it lets through, the operation would not get that error any more.
local function denied_rights()
  local scratch, denied = members .. token .. '?', {}
  local trials = {
    {'SET', scratch, 'x', 'XX'}, {'DEL', scratch}, {'PEXPIRE', scratch, 1}, {'HSET', scratch, 'x', 'y', 'z'},
    {'ZADD', scratch, 'XX', 0, '?'}, {'ZREM', scratch, '?'}, {'TIME'}, {'GET', scratch}, {'TYPE', scratch},
    {'EXISTS', scratch}, {'PTTL', scratch}, {'HMGET', scratch, '?'}, {'HGETALL', scratch}, {'HEXISTS', scratch, '?'},
    {'HLEN', scratch}, {'ZRANGE', scratch, 0, 0}, {'ZSCORE', scratch, '?'}, {'ZRANK', scratch, '?'}, {'ZCARD', scratch}
  }
  -- Keys of another type are no obstacle: permissions are checked first.
  for _, key in ipairs({lock, holder, counter, queue, waiters}) do
    trials[#trials + 1] = {'HGET', key, '?'}
    trials[#trials + 1] = {'HDEL', key, '?'}
  end
  for which, trial in ipairs(trials) do
    local reply = try(unpack(trial))
    local message = type(reply) == 'table' and reply.err or ''
    if string.find(message, 'ermission', 1, true) or string.find(message, 'user executing', 1, true)
      or string.find(message, 'Unknown ', 1, true) then
      denied[#denied + 1] = {command = trial[1], key = trial[2], message = message}
    elseif which == 1 and message ~= '' then
      break
    end
  end
  return denied
end

if request.tries_rights then
  local denied = denied_rights()
  if denied[1] then
    return cjson.encode({outcome = 'denied', denied = denied})
  end
end
if request.operation == 'try_rights' then
  return cjson.encode({outcome = 'done'})
end

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The length of the value of the lock, in bytes. For a user without permission for these commands the length is not
-- checked.
local function value_length()
  local bytes = recipe.channel and try('MEMORY', 'USAGE', lock) or try('STRLEN', lock)
  return type(bytes) == 'number' and bytes or 0
end

-- The value of the lock: a string or, with the recipe of Redisson, the name of the only field of a hash; false if the
-- key does not exist; true if the value is not one that dlock stores. Large values are not read: copying 100 MB blocks
-- the server for 0.5 s.
local function read_lock()
  if value_length() > max_value_length then
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

-- Reads something of the lock after the last change of it, so that the client is told of the next one (CLIENT TRACKING).
local function track_lock()
  try('EXISTS', lock)
end

local own_type = recipe.channel and 'hash' or 'string'
local key_type, value = own_type, read_lock()
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  key_type, value = call('TYPE', lock).ok, false
end
local is_marked = value == marker
if is_marked then
  value = false
end

-- mode: false is free, f is foreign. high: all slots ever taken are below it; those of them that are free again are in
-- `vacant`.
local mode, slots, high = false, 0, 0
if key_type ~= own_type then
  mode = 'f'
elseif value then
  local noted = try('HMGET', holder, 'format', 'value', 'mode', 'slots', 'high')
  if noted.err and not string.find(noted.err, 'WRONGTYPE', 1, true) then
    return noted
  end
  if noted[2] == value then
    if noted[1] ~= (noted[3] == 'x' and '1' or '2') then
      return cjson.encode({outcome = 'other_format', format = noted[1] or nil})
    end
    mode, slots, high = noted[3], tonumber(noted[4]), tonumber(noted[5] or 0)
  else
    mode = value == token and 'x' or 'f'
  end
end

-- The freeze of the lock: its text, its id, and how long it lasts yet, in ms; nil if there is none. While the slot of the
-- lock migrates, it may be on the other node: only `rest` is known then, or nothing.
local freeze, is_freeze_known, is_freeze_elsewhere = nil, false, false
local function set_freeze(text)
  local is_json, read = pcall(cjson.decode, text)
  read = is_json and type(read) == 'table' and read or {}
  local rest = type(read['until']) == 'number' and read['until'] - now or forever
  freeze = text and rest > 0 and {text = text, id = read.id, rest = math.min(rest, forever)} or nil
  is_freeze_known = true
end

-- Returns the freeze, which is read when it is first needed.
local function frozen()
  if is_freeze_known then
    return freeze
  end
  local text = try('GET', frozen_key)
  if type(text) == 'table' then
    -- Refused for a key that is not on this node any more while the slot migrates, or that has never existed.
    is_freeze_elsewhere = string.find(text.err, 'non local', 1, true) ~= nil
    text = not is_freeze_elsewhere and call('GET', frozen_key)
  elseif not text and is_marked and ARGV[2] then
    -- It is still on the node that the keys migrate from.
    is_freeze_elsewhere = true
  end
  set_freeze(text)
  if is_freeze_elsewhere and (is_marked or try('HGET', waiters, 'format') == '2') then
    local rest = call('PTTL', is_marked and lock or waiters)
    freeze = {rest = rest >= 0 and rest or forever}
  end
  return freeze
end

-- Stores in the index that the lock is in use for this many ms, for commands that list the locks. Never read here: a
-- connection with client tracking that reads the index would be notified of every lock.
local function add_to_index(lasts)
  local noted = try('ZADD', index, 'GT', now + lasts, lock)
  if type(noted) == 'table' then
    -- Before Redis 6.2.
    try('ZADD', index, now + lasts, lock)
  end
end

-- Has the index last for so many ms, or longer: another lock in it may be frozen for longer.
local function extend_index(lasts)
  local extended = try('PEXPIRE', index, lasts, 'GT')
  if type(extended) == 'table' then
    -- Before Redis 7.0.
    try('PEXPIRE', index, lasts)
  elseif extended == 0 then
    try('PEXPIRE', index, lasts, 'NX')
  end
end

-- Replaces the value of the lock, unless it is one that dlock does not store: the caller has removed that. The command that
-- may fail for lack of memory comes first.
local function write_lock(text, lease)
  local former = is_marked and marker or value ~= true and value
  if recipe.channel then
    call('HSET', lock, text, 1)
    if former and former ~= text then
      call('HDEL', lock, former)
    end
    call('PEXPIRE', lock, lease)
  elseif lease < forever then
    call('SET', lock, text, 'PX', lease)
  else
    call('SET', lock, text)
  end
  is_marked = text == marker
end

-- Removes the value of the lock, or replaces it by the marker while the lock is frozen. A key that is removed cannot be made
-- again while the slot migrates.
local function clear_lock()
  if not frozen() then
    call('DEL', lock)
    is_marked = false
    return
  end
  if key_type ~= own_type or value == true then
    call('DEL', lock)
  end
  write_lock(marker, freeze.rest)
end

-- Frees the lock and notifies the waiters of other programs unless it is frozen, as far as permissions allow: one waiter
-- of python-redis-lock; all waiters of Redisson, which listen on either kind of channel, and the first in the queue of its
-- fair lock.
local function free_lock()
  if recipe.signal and not frozen() then
    try('DEL', recipe.signal)
    try('LPUSH', recipe.signal, 1)
    try('PEXPIRE', recipe.signal, 1000)
  end
  clear_lock()
  try('DEL', holder)
  if mode == 's' or mode == 'c' then
    try('DEL', ends)
    try('DEL', vacant)
  end
  mode, value, slots, high = false, false, 0, 0
  if recipe.channel and not freeze then
    local first = try('LRANGE', recipe.queue, 0, 0)[1]
    for _, channel in ipairs({recipe.channel, first and recipe.channel .. ':' .. first}) do
      try('PUBLISH', channel, 0)
      try('SPUBLISH', channel, 0)
    end
  end
end
