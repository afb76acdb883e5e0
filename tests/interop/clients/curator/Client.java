import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BiFunction;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * Curator's InterProcessMutex and InterProcessReadWriteLock, behind the line protocol of tests/interop/libraries.py.
 *
 * <p>Client mutex|read|write HOST:PORT
 *
 * <p>Each lock has a session of its own, because the lease of a lock is the time-out of a session.
 */
final class Client {
  private record Held(CuratorFramework curator, InterProcessLock lock) {}

  private final String servers;
  private final BiFunction<CuratorFramework, String, InterProcessLock> kind;
  private final Map<String, Held> held = new HashMap<>();

  private Client(String servers, BiFunction<CuratorFramework, String, InterProcessLock> kind) {
    this.servers = servers;
    this.kind = kind;
  }

  private String obey(String[] words) throws Exception {
    String name = words[1];
    if (words[0].equals("unlock")) {
      Held lock = held.remove(name);
      lock.lock().release();
      lock.curator().close();
      return "unlocked";
    }
    CuratorFramework curator =
        CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs(Integer.parseInt(words[2]))
            .retryPolicy(new RetryOneTime(100))
            .build();
    curator.start();
    InterProcessLock lock = kind.apply(curator, "/" + name);
    long patience = 0;
    if (words[0].equals("wait")) {
      say("waiting");
      patience = Long.parseLong(words[3]);
    }
    if (!lock.acquire(patience, MILLISECONDS)) {
      curator.close();
      return "busy";
    }
    held.put(name, new Held(curator, lock));
    return "held";
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  public static void main(String[] args) throws Exception {
    Client client =
        new Client(
            args[1],
            switch (args[0]) {
              case "mutex" -> InterProcessMutex::new;
              case "read" -> (curator, path) -> new InterProcessReadWriteLock(curator, path).readLock();
              case "write" -> (curator, path) -> new InterProcessReadWriteLock(curator, path).writeLock();
              default -> throw new IllegalArgumentException(args[0]);
            });
    String version = CuratorFramework.class.getPackage().getImplementationVersion();
    say("ready Curator " + (version == null ? "?" : version));
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
