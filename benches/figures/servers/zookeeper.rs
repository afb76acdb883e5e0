//! A single ZooKeeper.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::{Server, ask, eventually, free_port};

const PACKAGE: &str = "zookeeper";
const JAR: &str = "/usr/share/java/zookeeper.jar";

pub struct ZooKeeper {
    port: u16,
    _server: Server,
}

impl ZooKeeper {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        if !Path::new(JAR).exists() {
            return Err(format!("{JAR}: apt-get install {PACKAGE}").into());
        }
        let port = free_port()?;
        let data = dir.join("zookeeper");
        std::fs::create_dir(&data)?;
        let configuration = data.join("zoo.cfg");
        std::fs::write(
            &configuration,
            // Sessions may be as long as the default lease; of a shorter one dlock would warn in each run.
            format!(
                "tickTime=500\nmaxSessionTimeout=60000\nclientPortAddress=127.0.0.1\nclientPort={port}\ndataDir={}\n\
                 admin.enableServer=false\n4lw.commands.whitelist=ruok\n",
                data.display()
            ),
        )?;
        let mut command = Command::new("java");
        command
            .args(["-Xmx256m", "-Dzookeeper.forceSync=no", "-cp", &format!("/etc/zookeeper/conf:{JAR}")])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&configuration);
        let zookeeper = ZooKeeper { port, _server: Server::spawn(&mut command, PACKAGE)? };
        eventually("ZooKeeper", || zookeeper.is_ok().is_ok_and(|ok| ok))?;
        Ok(zookeeper)
    }

    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port)
    }

    fn is_ok(&self) -> std::io::Result<bool> {
        let reply = ask(self.port, b"ruok")?;
        Ok(reply == "imok")
    }
}
