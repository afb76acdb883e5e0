import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's RLock and its kin, behind the line protocol of tests/interop/libraries.py.
 *
 * <p>Client RLock|RFencedLock|RFairLock|RReadWriteLock HOST:PORT
 *
 * <p>Everything happens on one thread: a lock belongs to the thread that took it, and that thread may take it again.
 */
final class Client {
  private final Function<String, RLock> locks;

  private Client(Function<String, RLock> locks) {
    this.locks = locks;
  }

  private String obey(String[] words) throws InterruptedException {
    RLock lock = locks.apply(words[1]);
    if (words[0].equals("unlock")) {
      try {
        lock.unlock();
      } catch (IllegalMonitorStateException notOurs) {
        return "lost";
      }
      return "unlocked";
    }
    long lease = Long.parseLong(words[2]);
    long patience = 0;
    if (words[0].equals("wait")) {
      say("waiting");
      patience = Long.parseLong(words[3]);
    }
    if (lock instanceof RFencedLock fenced) {
      Long token = fenced.tryLockAndGetToken(patience, lease, MILLISECONDS);
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
    RedissonClient redisson = Redisson.create(config);
    Client client =
        new Client(
            switch (args[0]) {
              case "RLock" -> redisson::getLock;
              case "RFencedLock" -> redisson::getFencedLock;
              case "RFairLock" -> redisson::getFairLock;
              case "RReadWriteLock" -> name -> redisson.getReadWriteLock(name).readLock();
              default -> throw new IllegalArgumentException(args[0]);
            });
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
