import public_jobs

BATCH_SIZE = 256

model = public_jobs.weather_model()
model.fit(public_jobs.weather(BATCH_SIZE), epochs=10)
