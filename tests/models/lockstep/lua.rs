//! Runs the scripts of dlock as Redis does: Lua 5.1 with `redis`, `cjson`, `KEYS` and `ARGV`, and without global variables
//! of the script's own.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use serde_json::{Map, Number, Value as Json};

use super::redis::{Redis, Reply};
use super::source;

/// The interpreter of a server.
pub(super) struct Interpreter {
    lua: Lua,
    claim: Function,
    hold: Function,
    administer: Function,
    look: Function,
    server: Rc<RefCell<Redis>>,
}

/// What can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Claim,
    Hold,
    Administer,
    Look,
}

impl Interpreter {
    /// `calls_ahead`: see [`Case::calls_ahead`](super::model::Case::calls_ahead).
    pub(super) fn new(calls_ahead: bool) -> Interpreter {
        let lua = Lua::new();
        let server = Rc::new(RefCell::new(Redis::default()));
        let redis = lua.create_table().unwrap();
        for (name, raises) in [("call", true), ("pcall", false)] {
            let server = Rc::clone(&server);
            let function = lua.create_function(move |lua, arguments: MultiValue| {
                let arguments: Vec<String> = arguments.iter().map(argument).collect();
                let reply = server.borrow_mut().execute(&arguments);
                match reply {
                    Reply::Error(message) if raises => Err(mlua::Error::runtime(message)),
                    reply => to_lua(lua, reply),
                }
            });
            redis.set(name, function.unwrap()).unwrap();
        }
        let digest = lua.create_function(|_, text: mlua::LuaString| {
            Ok(sha1_smol::Sha1::from(&*text.as_bytes()).digest().to_string())
        });
        redis.set("sha1hex", digest.unwrap()).unwrap();
        let cjson = lua.create_table().unwrap();
        let decode = lua.create_function(|lua, text: String| match serde_json::from_str(&text) {
            Ok(json) => decoded(lua, &json),
            Err(error) => Err(mlua::Error::runtime(error)),
        });
        let encode = lua.create_function(|_, value: Value| Ok(encoded(&value).to_string()));
        cjson.set("decode", decode.unwrap()).unwrap();
        cjson.set("encode", encode.unwrap()).unwrap();
        let globals = lua.globals();
        globals.set("redis", redis).unwrap();
        globals.set("cjson", cjson).unwrap();
        globals.set("KEYS", Value::Nil).unwrap();
        globals.set("ARGV", Value::Nil).unwrap();
        let load = |text: &str, name: &str| lua.load(text).set_name(name).into_function().unwrap();
        let mut claim = source::CLAIM.to_owned();
        if !calls_ahead {
            let (usual, none) = ("late_after_ms, max_ahead = 50, 32\n", "late_after_ms, max_ahead = 50, 0\n");
            assert!(claim.contains(usual));
            claim = claim.replace(usual, none);
        }
        let claim = load(&claim, "=claim");
        let hold = load(source::HOLD, "=hold");
        let administer = load(source::ADMINISTER, "=administer");
        let look = load(source::LOOK, "=look.lua");
        // As script_lua.c does ("Script attempted to access nonexistent global variable").
        let protect = "setmetatable(_G, {
            __newindex = function(_, name) error('a script sets the global variable ' .. name) end,
            __index = function(_, name)
              if name ~= 'KEYS' and name ~= 'ARGV' then error('there is no global variable ' .. name) end
            end})";
        lua.load(protect).exec().unwrap();
        Interpreter { lua, claim, hold, administer, look, server }
    }

    /// Runs a script on a server with one key and one argument, and returns its reply.
    ///
    /// # Panics
    /// The script fails.
    pub(super) fn run(&self, server: &mut Redis, script: Script, key: &str, request: &Json) -> Json {
        server.published.clear();
        std::mem::swap(&mut *self.server.borrow_mut(), server);
        let globals = self.lua.globals();
        globals.raw_set("KEYS", [key]).unwrap();
        globals.raw_set("ARGV", [request.to_string()]).unwrap();
        let function = match script {
            Script::Claim => &self.claim,
            Script::Hold => &self.hold,
            Script::Administer => &self.administer,
            Script::Look => &self.look,
        };
        let reply: Value = function.call(()).unwrap_or_else(|error| panic!("{script:?} {request}: {error}"));
        std::mem::swap(&mut *self.server.borrow_mut(), server);
        match reply {
            Value::String(text) => serde_json::from_slice(&text.as_bytes()).unwrap(),
            other => panic!("{script:?} {request}: {other:?}"),
        }
    }
}

/// Returns an argument of a command as it is sent: numbers with 17 digits.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        other => panic!("Lua redis lib command arguments must be strings or integers: {other:?}"),
    }
}

/// Converts a reply, as described in Redis' "Lua API reference".
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let of_field = |name, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Number(number) => Ok(Value::Number(number as f64)),
        Reply::Text(text) => Ok(Value::String(lua.create_string(text)?)),
        Reply::Status(text) => of_field("ok", text),
        Reply::Error(text) => of_field("err", &text),
        Reply::Array(parts) => {
            let table = lua.create_table_with_capacity(parts.len(), 0)?;
            for (place, part) in parts.into_iter().enumerate() {
                table.raw_set(place + 1, to_lua(lua, part)?)?;
            }
            Ok(Value::Table(table))
        }
    }
}

fn decoded(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    let table = |pairs: &mut dyn Iterator<Item = (Value, &Json)>| {
        let table = lua.create_table()?;
        for (key, value) in pairs {
            table.raw_set(key, decoded(lua, value)?)?;
        }
        Ok(Value::Table(table))
    };
    match json {
        Json::Null => Ok(Value::NULL),
        Json::Bool(is) => Ok(Value::Boolean(*is)),
        Json::Number(number) => Ok(Value::Number(number.as_f64().unwrap())),
        Json::String(text) => Ok(Value::String(lua.create_string(text)?)),
        Json::Array(parts) => table(
            &mut parts.iter().enumerate().map(|(place, part)| (Value::Number(place as f64 + 1.0), part)),
        ),
        Json::Object(fields) => {
            let key = |key: &String| Value::String(lua.create_string(key).unwrap());
            table(&mut fields.iter().map(|(name, value)| (key(name), value)))
        }
    }
}

fn encoded(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Boolean(is) => Json::Bool(*is),
        Value::Integer(number) => encoded_number(*number as f64),
        Value::Number(number) => encoded_number(*number),
        Value::String(text) => Json::String(text.to_string_lossy()),
        Value::Table(table) => encoded_table(table),
        other => panic!("Cannot serialise {other:?}"),
    }
}

/// With 14 digits, as `lua_cjson.c` writes it.
fn encoded_number(number: f64) -> Json {
    let rounded: f64 = format!("{number:.13e}").parse().unwrap();
    match rounded.fract() == 0.0 && rounded.abs() < 1e18 {
        true => Json::Number((rounded as i64).into()),
        false => Json::Number(Number::from_f64(rounded).unwrap()),
    }
}

fn encoded_table(table: &Table) -> Json {
    if table.raw_len() > 0 {
        return Json::Array(table.sequence_values::<Value>().map(|part| encoded(&part.unwrap())).collect());
    }
    let pairs = table.pairs::<String, Value>().map(|pair| pair.unwrap());
    Json::Object(pairs.map(|(name, value)| (name, encoded(&value))).collect::<Map<_, _>>())
}
