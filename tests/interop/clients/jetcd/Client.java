import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.kv.DeleteResponse;
import io.etcd.jetcd.lock.LockResponse;
import io.etcd.jetcd.options.GetOption;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * The lock client of jetcd, which calls the lock service of the server, behind the line protocol of
 * tests/interop/libraries.py.
 *
 * <p>Client HOST:PORT
 */
final class Client {
  private record Held(long lease, ByteSequence key) {}

  private final io.etcd.jetcd.Client etcd;
  private final Map<String, Held> held = new HashMap<>();

  private Client(io.etcd.jetcd.Client etcd) {
    this.etcd = etcd;
  }

  private static ByteSequence bytes(String text) {
    return ByteSequence.from(text, UTF_8);
  }

  private String obey(String[] words) throws Exception {
    String name = words[1];
    if (words[0].equals("unlock")) {
      return unlock(held.remove(name));
    }
    long ttl = Long.parseLong(words[2]) / 1000;
    long lease = etcd.getLeaseClient().grant(ttl).get().getID();
    CompletableFuture<LockResponse> locked = etcd.getLockClient().lock(bytes(name), lease);
    try {
      LockResponse response;
      if (words[0].equals("wait")) {
        say("waiting");
        response = locked.get(Long.parseLong(words[3]), MILLISECONDS);
      } else {
        awaitOwnKey(name, lease, locked);
        response = locked.get(200, MILLISECONDS);
      }
      held.put(name, new Held(lease, response.getKey()));
      return "held";
    } catch (TimeoutException busy) {
      etcd.getLeaseClient().revoke(lease).get();
      return "busy";
    }
  }

  /** Returns when the lock is held, or when the key of this contender stands behind another. */
  private void awaitOwnKey(String name, long lease, CompletableFuture<LockResponse> locked) throws Exception {
    String own = name + "/" + Long.toHexString(lease);
    GetOption byAge =
        GetOption.builder().isPrefix(true).withSortField(GetOption.SortTarget.CREATE)
            .withSortOrder(GetOption.SortOrder.ASCEND).build();
    while (!locked.isDone()) {
      var keys = etcd.getKVClient().get(bytes(name + "/"), byAge).get().getKvs();
      if (keys.stream().skip(1).anyMatch(key -> key.getKey().toString(UTF_8).equals(own))) {
        return;
      }
      TimeUnit.MILLISECONDS.sleep(5);
    }
  }

  /** As `unlock` of the lock client, which does not say whether the key was there. */
  private String unlock(Held lock) throws Exception {
    DeleteResponse deleted = etcd.getKVClient().delete(lock.key()).get();
    if (deleted.getDeleted() == 0) {
      return "lost";
    }
    etcd.getLeaseClient().revoke(lock.lease()).get();
    return "unlocked";
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  public static void main(String[] args) throws Exception {
    Client client = new Client(io.etcd.jetcd.Client.builder().endpoints("http://" + args[0]).build());
    String jar = io.etcd.jetcd.Client.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    say("ready jetcd " + jar.replaceAll(".*jetcd-core-(.*)\\.jar", "$1"));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String answer;
      try {
        answer = client.obey(line.split(" "));
      } catch (Exception error) {
        answer = "error " + error.getClass().getSimpleName() + ": " + error.getMessage();
      }
      say(answer.replace('\n', ' '));
    }
    System.exit(0);
  }
}
