-- The fencing counter and, for a node of a Redlock, since when the node has kept all data.

-- Redlock: since when, in ms, this node has kept everything that was written to it, and its id. A server that was
-- restarted may have kept less, or older data. Without permission to query the run id, only the loss of all data is
-- detected. A minus sign marks a node that received requests before that time.
local born, itself, sign
local function read_since_marker(id)
  local info = try('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  local before, at, who, ran = string.match(call('GET', 'dlock#since') or '', '^(-?)(%d+) (%S+) ?(%w*)')
  born, itself, sign = tonumber(at), who, before
  if not at or born > now or ran ~= '' and run ~= '' and ran ~= run then
    born, itself, sign = now, who or id, at and '-' or ''
    call('SET', 'dlock#since', string.format('%s%.0f %s %s', sign, now, itself, run))
  end
end

-- Stores the last fencing token. A counter that is ahead of the server's time, such as one that was raised, must not
-- expire: a new one starts at that time.
local function set_counter(last, life)
  if life ~= 0 and last < now * 1000 + life * 500 then
    call('SET', counter, string.format('%.0f', last), 'PX', life)
  else
    call('SET', counter, string.format('%.0f', last))
  end
end

-- The last fencing token; 0 if there is none.
local function last_fencing()
  local last = tonumber(call('GET', counter) or 0)
  if not last or last ~= last or last < 0 then
    last = 0
  end
  return last
end

-- Returns the fencing token of the next grant, or `to` if that is larger. A counter starts at the server's time. On a
-- single server, and on a node that may have come back with an older counter, the time is also the minimum for the next
-- token. With `noted`, the token was given by other nodes and is only stored.
local function next_fencing(to, life, noted)
  local last = last_fencing()
  local least = born and last > 0 and born * 1000 or time[1] * 1000000 + time[2]
  local next = noted and math.max(last, to) or math.max(math.floor(last) + 1, least, to)
  if next < 9007199254740992 then
    set_counter(next, life)
    return string.format('%.0f', noted and to or next)
  end
end
