-- Ends each script: runs the operation, and returns its reply.

local reply = operations[request.operation]()
return reply.err and reply or cjson.encode(reply)
