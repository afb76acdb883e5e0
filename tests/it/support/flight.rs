//! The requests of a client, split where the server replied: one flight costs one round trip.

use super::resp::Commands;
use std::time::Instant;

/// What the client sent between two replies of the server.
#[derive(Debug, Clone)]
pub struct Flight {
    /// Number of the connection, from 0.
    pub connection: usize,
    /// When its first byte arrived.
    pub at: Instant,
    /// Number of bytes.
    pub bytes: usize,
    /// The commands in it, each as its words.
    pub commands: Vec<Vec<String>>,
    /// When the first byte that the server sent afterwards was delivered to the client, if it was.
    pub answered: Option<Instant>,
}

impl Flight {
    /// The first word of each command, in capitals.
    pub fn names(&self) -> Vec<String> {
        self.commands.iter().filter_map(|words| words.first()).map(|word| word.to_uppercase()).collect()
    }
}

/// Splits the bytes that the client sends on one connection into flights.
#[derive(Debug)]
pub struct Logbook {
    connection: usize,
    commands: Commands,
    /// Number of replies when the last bytes arrived.
    answers: Option<usize>,
}

impl Logbook {
    /// For a connection that has sent nothing yet.
    pub fn of(connection: usize) -> Self {
        Self { connection, commands: Commands::default(), answers: None }
    }

    /// Adds bytes to the flight they belong to; `answers` is the number of replies of the server so far.
    pub fn add(&mut self, flights: &mut Vec<Flight>, answers: usize, bytes: &[u8]) {
        if self.answers.replace(answers) != Some(answers) {
            let at = Instant::now();
            flights.push(Flight {
                connection: self.connection,
                at,
                bytes: 0,
                commands: Vec::new(),
                answered: None,
            });
        }
        let complete = self.commands.push(bytes);
        if let Some(flight) = flights.iter_mut().rev().find(|flight| flight.connection == self.connection) {
            flight.bytes += bytes.len();
            flight.commands.extend(complete);
        }
    }
}
