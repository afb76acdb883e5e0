// node-redlock with ioredis, version 4 or 5, behind the line protocol of tests/interop/libraries.py.
//
// client.js redlock4|redlock5 HOST:PORT...
"use strict";

const readline = require("node:readline");
const Redis = require("ioredis");

// As often as the library does by default, but without end: node-redlock counts its tries, not the time.
const RETRY = { retryDelay: 200, retryJitter: 100 };

// A node may be down in some of the scenarios: its questions fail at once instead of being kept for later.
function connect(node) {
    const [host, port] = node.split(":");
    const redis = new Redis({ host, port: Number(port), enableOfflineQueue: false, maxRetriesPerRequest: 0 });
    redis.on("error", () => {});
    return redis;
}

const settled = (redis) =>
    new Promise((resolve) => {
        redis.once("ready", resolve);
        redis.once("error", resolve);
    });

function version4(nodes) {
    const Redlock = require("redlock4");
    const make = (retryCount) => new Redlock(nodes, { ...RETRY, retryCount });
    const [once, forever] = [make(0), make(-1)];
    return {
        acquire: (name, ttl, patient) => (patient ? forever : once).lock(name, ttl),
        release: (lock) => lock.unlock(),
        // Version 4 has one error for all that can happen.
        isBusy: (error) => error instanceof Redlock.LockError,
        isLost: (error) => error instanceof Redlock.LockError,
    };
}

function version5(nodes) {
    const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock5");
    const make = (retryCount) => {
        const redlock = new Redlock(nodes, { ...RETRY, retryCount });
        redlock.on("error", () => {});
        return redlock;
    };
    const [once, forever] = [make(0), make(-1)];
    // Whether some node said that it is locked, and not only that it cannot be asked.
    const locked = async (error) => {
        if (!(error instanceof ExecutionError)) return false;
        const last = await error.attempts[error.attempts.length - 1];
        return [...last.votesAgainst.values()].some((vote) => vote instanceof ResourceLockedError);
    };
    return {
        acquire: (name, ttl, patient) => (patient ? forever : once).acquire([name], ttl),
        release: (lock) => once.release(lock),
        isBusy: locked,
        isLost: locked,
    };
}

async function main(library, ...addresses) {
    const nodes = addresses.map(connect);
    await Promise.all(nodes.map(settled));
    const locks = new Map();
    const redlock = { redlock4: version4, redlock5: version5 }[library](nodes);

    async function obey(word, name, ttl, patience) {
        if (word === "unlock") {
            const lock = locks.get(name);
            locks.delete(name);
            try {
                await redlock.release(lock);
            } catch (error) {
                if (await redlock.isLost(error)) return "lost";
                throw error;
            }
            return "unlocked";
        }
        if (word === "wait") console.log("waiting");
        try {
            locks.set(name, await redlock.acquire(name, Number(ttl), patience !== undefined));
        } catch (error) {
            if (await redlock.isBusy(error)) return "busy";
            throw error;
        }
        return "held";
    }

    const { version } = require(`${__dirname}/node_modules/${library}/package.json`);
    console.log("ready", "node-redlock", version);
    for await (const line of readline.createInterface({ input: process.stdin })) {
        try {
            console.log(await obey(...line.split(" ")));
        } catch (error) {
            console.log(`error ${error.name}: ${error.message}`.replaceAll("\n", " "));
        }
    }
    process.exit(0);
}

main(...process.argv.slice(2));
