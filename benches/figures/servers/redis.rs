//! A Redis, and a minimal client.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Server, eventually, free_port};

pub struct Redis {
    port: u16,
    _server: Server,
}

impl Redis {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
        let server = Server::spawn(&mut command, "redis-server")?;
        let redis = Redis { port, _server: server };
        eventually("redis-server", || {
            redis.connect().and_then(|mut it| it.request("PING")).is_ok_and(|it| it == "+PONG")
        })?;
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> Result<RedisClient, Box<dyn Error>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        Ok(RedisClient { reader: BufReader::new(stream) })
    }
}

/// A minimal client: inline commands, and single-line replies.
pub struct RedisClient {
    reader: BufReader<TcpStream>,
}

impl RedisClient {
    pub fn request(&mut self, command: &str) -> Result<String, Box<dyn Error>> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.line()
    }

    pub fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("redis-server closed the connection".into());
        }
        Ok(line.trim_end().to_string())
    }

    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Box<dyn Error>> {
        Ok(self.reader.get_ref().set_read_timeout(Some(timeout))?)
    }

    /// The remaining time to live of a key in milliseconds: -2 if the key does not exist, -1 if it has no expiry.
    pub fn pttl(&mut self, key: &str) -> Result<i64, Box<dyn Error>> {
        let reply = self.request(&format!("PTTL {key}"))?;
        Ok(reply.strip_prefix(':').ok_or(format!("PTTL: {reply}"))?.parse()?)
    }
}
