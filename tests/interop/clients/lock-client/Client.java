import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import com.amazonaws.services.dynamodbv2.model.LockCurrentlyUnavailableException;
import com.amazonaws.services.dynamodbv2.model.LockNotGrantedException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/**
 * AWS's lock client, behind the line protocol of tests/interop/libraries.py. It sends heartbeats, asks every 100 ms while it
 * waits, and deletes every other item that it releases.
 *
 * <p>Client HOST:PORT
 */
final class Client {
  private static final String TABLE = "Locks";

  private final DynamoDbClient dynamo;
  /** By the duration of their leases. */
  private final Map<Long, AmazonDynamoDBLockClient> clients = new HashMap<>();

  private final Map<String, LockItem> held = new HashMap<>();
  private final Map<String, AmazonDynamoDBLockClient> holders = new HashMap<>();
  private boolean deletes;

  private Client(DynamoDbClient dynamo) {
    this.dynamo = dynamo;
  }

  private AmazonDynamoDBLockClient client(long ttl) {
    return clients.computeIfAbsent(
        ttl,
        unused ->
            new AmazonDynamoDBLockClient(
                AmazonDynamoDBLockClientOptions.builder(dynamo, TABLE)
                    .withTimeUnit(TimeUnit.MILLISECONDS)
                    .withLeaseDuration(ttl)
                    .withHeartbeatPeriod(ttl / 4)
                    .withCreateHeartbeatBackgroundThread(true)
                    .build()));
  }

  private String obey(String[] words) throws Exception {
    String name = words[1];
    if (words[0].equals("unlock")) {
      return holders.remove(name).releaseLock(held.remove(name)) ? "unlocked" : "lost";
    }
    boolean waits = words[0].equals("wait");
    deletes = !deletes;
    AcquireLockOptions.AcquireLockOptionsBuilder options =
        AcquireLockOptions.builder(name)
            .withTimeUnit(TimeUnit.MILLISECONDS)
            .withRefreshPeriod(100L)
            .withAdditionalTimeToWaitForLock(waits ? Long.parseLong(words[3]) : 0L)
            .withShouldSkipBlockingWait(!waits)
            .withDeleteLockOnRelease(deletes);
    if (waits) {
      say("waiting");
    }
    try {
      AmazonDynamoDBLockClient client = client(Long.parseLong(words[2]));
      held.put(name, client.acquireLock(options.build()));
      holders.put(name, client);
      return "held";
    } catch (LockNotGrantedException | LockCurrentlyUnavailableException busy) {
      return "busy";
    }
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  public static void main(String[] args) throws Exception {
    DynamoDbClient dynamo =
        DynamoDbClient.builder()
            .endpointOverride(URI.create("http://" + args[0]))
            .region(Region.US_EAST_1)
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("key", "secret")))
            .build();
    Client client = new Client(dynamo);
    String jar = AmazonDynamoDBLockClient.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    say("ready amazon-dynamodb-lock-client " + jar.replaceAll(".*lock-client-(.*)\\.jar", "$1"));
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
