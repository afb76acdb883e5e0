import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/**
 * ShedLock over JDBC, by the clock of the database, behind the line protocol of tests/interop/libraries.py. It cannot
 * wait: this asks every 100 ms.
 *
 * <p>Client postgresql|mariadb HOST:PORT
 */
final class Client {
  private final LockProvider provider;
  private final Map<String, SimpleLock> held = new HashMap<>();

  private Client(LockProvider provider) {
    this.provider = provider;
  }

  private String obey(String[] words) throws Exception {
    String name = words[1];
    if (words[0].equals("unlock")) {
      held.remove(name).unlock();
      return "unlocked";
    }
    Duration ttl = Duration.ofMillis(Long.parseLong(words[2]));
    long patience = words[0].equals("wait") ? Long.parseLong(words[3]) : 0;
    if (words[0].equals("wait")) {
      say("waiting");
    }
    Instant end = Instant.now().plusMillis(patience);
    while (true) {
      Optional<SimpleLock> lock = provider.lock(new LockConfiguration(Instant.now(), name, ttl, Duration.ZERO));
      if (lock.isPresent()) {
        held.put(name, lock.get());
        return "held";
      }
      if (!Instant.now().isBefore(end)) {
        return "busy";
      }
      TimeUnit.MILLISECONDS.sleep(100);
    }
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  public static void main(String[] args) throws Exception {
    String url =
        args[0].equals("postgresql")
            ? "jdbc:postgresql://" + args[1] + "/postgres?user=postgres&ApplicationName=ShedLock"
            : "jdbc:mariadb://" + args[1] + "/locks?user=root";
    JdbcTemplate database = new JdbcTemplate(new SingleConnectionDataSource(url, true));
    Client client =
        new Client(
            new JdbcTemplateLockProvider(
                JdbcTemplateLockProvider.Configuration.builder()
                    .withJdbcTemplate(database)
                    .usingDbTime()
                    .build()));
    String jar = JdbcTemplateLockProvider.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    say("ready ShedLock " + jar.replaceAll(".*jdbc-template-(.*)\\.jar", "$1"));
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
