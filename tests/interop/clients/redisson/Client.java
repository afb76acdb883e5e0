import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's RLock or RFencedLock, behind the line protocol of tests/interop/libraries.py.
 *
 * <p>Client RLock|RFencedLock HOST:PORT
 *
 * <p>Everything happens on one thread: a lock belongs to the thread that took it, and that thread may take it again.
 */
final class Client {
  private final RedissonClient redisson;
  private final boolean fenced;

  private Client(RedissonClient redisson, boolean fenced) {
    this.redisson = redisson;
    this.fenced = fenced;
  }

  private String obey(String[] words) throws InterruptedException {
    String name = words[1];
    RLock lock = fenced ? redisson.getFencedLock(name) : redisson.getLock(name);
    if (words[0].equals("unlock")) {
      try {
        lock.unlock();
      } catch (IllegalMonitorStateException notOurs) {
        return "lost";
      }
      return "unlocked";
    }
    // A lease of 0 is the library's own: 30 s, renewed by its watchdog.
    long lease = words[2].equals("0") ? -1 : Long.parseLong(words[2]);
    long patience = 0;
    if (words[0].equals("wait")) {
      say("waiting");
      patience = Long.parseLong(words[3]);
    }
    if (fenced) {
      Long token = ((RFencedLock) lock).tryLockAndGetToken(patience, lease, MILLISECONDS);
      return token == null ? "busy" : "held " + token;
    }
    return lock.tryLock(patience, lease, MILLISECONDS) ? "held" : "busy";
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  public static void main(String[] args) throws Exception {
    Config config = new Config();
    config.useSingleServer()
        .setAddress("redis://" + args[1])
        .setConnectionPoolSize(4)
        .setConnectionMinimumIdleSize(1)
        .setSubscriptionConnectionMinimumIdleSize(1);
    config.setThreads(2).setNettyThreads(2);
    Client client = new Client(Redisson.create(config), args[0].equals("RFencedLock"));
    String version = Redisson.class.getPackage().getImplementationVersion();
    say("ready Redisson " + (version == null ? "?" : version));
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
