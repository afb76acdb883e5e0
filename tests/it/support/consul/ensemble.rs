//! Three servers, and an agent that is not one of them.

use super::{Consul, leader_of};
use crate::support::SOON;
use crate::support::server::free_port;
use crate::support::wait::{eventually, until};
use serde_json::{Value, json};

/// The number of servers.
const SERVERS: usize = 3;

/// Servers that elect a leader, and the agent of a host without a server.
#[derive(Debug)]
pub struct Ensemble {
    /// The servers.
    pub servers: Vec<Consul>,
    /// The agent.
    pub client: Consul,
}

impl Ensemble {
    /// Starts one for one test only.
    pub fn start() -> Self {
        // Another process may take a port between the check and an agent's bind.
        for _ in 0..10 {
            let mut agents = prepare();
            agents.iter_mut().for_each(|agent| agent.daemon.launch());
            if agents.iter_mut().all(Consul::await_up) {
                // A session needs the node of its agent, which is registered a moment later.
                let nodes = || agents[0].json("GET", "catalog/nodes", &Value::Null);
                until(SOON, "all nodes", || nodes().as_array().is_some_and(|nodes| nodes.len() > SERVERS));
                let client = agents.pop().expect("an agent");
                return Self { servers: agents, client };
            }
        }
        panic!("consul does not start")
    }

    /// The server that leads, as this one knows it; waits until it knows of another one than `not`.
    #[track_caller]
    pub fn leader(&self, as_known_to: usize, not: Option<usize>) -> usize {
        eventually(SOON, "a leader", || {
            let port = leader_of(self.servers[as_known_to].port())?;
            let leader = self.servers.iter().position(|server| server.peer == port)?;
            (Some(leader) != not).then_some(leader)
        })
    }
}

/// The agents, the servers first, which are not started yet.
fn prepare() -> Vec<Consul> {
    let ports: Vec<u16> = (0..=SERVERS).map(|_| free_port()).collect();
    let join: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let agent = |(number, serf): (usize, &u16)| {
        let is_server = number < SERVERS;
        let mut settings = json!({
            "node_name": format!("node{number}"),
            "bootstrap": false,
            "server": is_server,
            "retry_join": join,
            "retry_interval": "1s",
        });
        if is_server {
            settings["bootstrap_expect"] = json!(SERVERS);
        }
        Consul::prepare(*serf, &settings, None)
    };
    ports.iter().enumerate().map(agent).collect()
}
